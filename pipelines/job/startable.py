"""The checks of settings that need neither the lake nor Kafka nor Spark."""

from __future__ import annotations

from pipelines.bodies import read_body_schemas
from pipelines.job.checkpoint import require_folder
from pipelines.job.election import Election
from pipelines.jvm.spark_settings import check_before_jvm
from pipelines.kafka_client.connection import Cluster
from pipelines.settings import Settings


def require_startable(settings: Settings) -> None:
    """Checks settings as a start does first, and `txlake config validate`.

    Makes the folders of the checkpoint and of Spark's own files if they do not exist. Tries Java if
    its options are set.
    Errors: SettingsError, NotALakeError, StartError, JavaError; OSError if the checkpoint's disk is
    full.
    """
    location = settings.lake.location()
    settings.parameters()
    read_body_schemas(settings.bodies)

    # librdkafka checks the settings of an admin client, and those of a consumer, when it makes one.
    # The consumer is closed again: it never joins its group.
    Cluster(settings.kafka.bootstrap_servers, settings.kafka.client)
    Election(settings.kafka, location.path, "settings").leave()

    check_before_jvm(settings.spark)
    require_folder(settings.stream.checkpoint, location)
