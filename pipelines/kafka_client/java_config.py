"""[kafka.client], checked by the readers that take it as Java's: Kafka's client, Spark's source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from pipelines.errors import StartError
from pipelines.jvm.spark_private import jvm_of
from pipelines.jvm.spark_settings import java_cause
from pipelines.kafka_client.options import spark_options
from pipelines.settings import KafkaSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "kafka."
_READS_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def validate_with_java(spark: SparkSession, kafka: KafkaSettings) -> None:
    """Checks that Spark's source takes the settings: a stream would report it after its start.

    Kafka is not asked. Errors: StartError.
    """
    from pyspark.errors import PySparkException

    options = spark_options(kafka)
    jvm = jvm_of(spark)
    client_config = jvm.java.util.HashMap()
    for key, value in options.items():
        if key.startswith(_PREFIX):
            client_config.put(key.removeprefix(_PREFIX), value)
    for part in ("key", "value"):
        client_config.put(f"{part}.deserializer", _READS_BYTES)

    try:
        jvm.org.apache.kafka.clients.consumer.ConsumerConfig(client_config)
        source = spark.readStream.format("kafka").options(**options)
        source.option("subscribe", kafka.half_topic).load()
    except (Py4JError, PySparkException) as error:
        raise StartError(
            f"[kafka.client] is not as Java's client of Kafka takes it: {java_cause(error)}"
        ) from error
