"""The settings of [kafka.client], named as librdkafka names them, as options of Spark's source.

Spark's source uses Kafka's Java client, which spells some settings differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.settings import KafkaSettings

# librdkafka's name -> the Java client's, where they differ.
_RENAMED = {
    "sasl.mechanisms": "sasl.mechanism",
    "ssl.key.password": "ssl.key.password",
}
_PEM = {"ssl.ca.location": "ssl.truststore", "ssl.keystore.location": "ssl.keystore"}
# Settings that only librdkafka has.
_ONLY_LIBRDKAFKA = (
    "ssl.certificate.location",
    "ssl.key.location",
    "enable.ssl.certificate.verification",
)
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_client(client: Mapping[str, str]) -> dict[str, str]:
    """Returns client settings for Java: a CA file as PEM trust store, a login as JAAS line."""
    java: dict[str, str] = {}
    for key, value in client.items():
        if key in ("sasl.username", "sasl.password", *_ONLY_LIBRDKAFKA):
            continue
        if key in _PEM:
            java[f"{_PEM[key]}.location"] = value
            java[f"{_PEM[key]}.type"] = "PEM"
        else:
            java[_RENAMED.get(key, key)] = value
    mechanism = java.get("sasl.mechanism", "")
    if mechanism in _LOGIN and "sasl.username" in client:
        user, password = (_quoted(client.get(k, "")) for k in ("sasl.username", "sasl.password"))
        java["sasl.jaas.config"] = (
            f"{_LOGIN[mechanism]} required username={user} password={password};"
        )
    return java


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spark_options(kafka: KafkaSettings) -> dict[str, str]:
    """Returns the options of Spark's Kafka source.

    fetch.max.wait.ms is short: Spark asks for a partition's end behind its own outstanding fetch,
    and would wait half a second for each. Time limits are short and retries few: the query survives
    a broker's restart, and ends within a minute if the broker stays away. The driver starts it
    again.
    """
    options = {f"kafka.{key}": value for key, value in java_client(kafka.client).items()}
    return {
        "kafka.request.timeout.ms": "10000",
        "kafka.default.api.timeout.ms": "10000",
        "kafka.fetch.max.wait.ms": "20",
        **options,
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafkaConsumer.pollTimeoutMs": "30000",
        "fetchOffset.numRetries": "4",
        "fetchOffset.retryIntervalMs": "500",
    }
