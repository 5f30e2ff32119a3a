"""A lake read with Spark: its tables as views, one topic as a frame or as a stream.

    from pipelines.spark_tables import create_views, open_spark

    spark = open_spark()
    create_views(spark, "/data/lake")
    spark.sql("SELECT outcome, cause, count(*) FROM outcomes GROUP BY ALL").show()

A lake on S3: `open_spark(lake=location)` and `create_views(spark, location)`, where `location` is
`lake_location("s3://bucket/lake", {"region": ..., ...})`, or the URI alone where the environment
has the credentials (AWS_ACCESS_KEY_ID ...).

delta-spark reads everything, and nothing is written. The caller can bring another session, if it
has Delta's jars, extension and catalog, and for S3 those of `txlake jars fetch s3`.

A row of a topic table is final. A row of an epoch that is not committed yet is right, only early
(docs/protocol/tables.md "Tables").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.jvm.jars import class_path
from pipelines.jvm.session import reap_jvm_at_its_end, start_session
from pipelines.jvm.spark_private import hadoop_configuration, spark_schema
from pipelines.lake_sql import union_all
from storage.errors import LakeError
from storage.files.location import LakeLocation, is_s3, lake_location, s3_access
from storage.lake.integrity import require_readable, require_recorded
from storage.lake.lake import Lake
from storage.schemas import CONSUMER_TABLES, TABLES, TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txlake import BodySchema

_MESSAGES = "messages"
_QUERY_ID = "sql.streaming.queryId"  # Spark's local property in the thread of a stream


def open_spark(
    app_name: str = "txlake reader", lake: str | LakeLocation | None = None
) -> SparkSession:
    """Returns a Spark session in this process for reading lakes, with the locked jars.

    A notebook shows its frames as tables. Input: `lake`: a lake on S3, which needs more jars.
    Errors: JavaError, JarError.
    """
    shown = {"enabled": "true", "truncate": "60"}
    settings = {f"spark.sql.repl.eagerEval.{key}": value for key, value in shown.items()}

    if lake is not None and is_s3(lake_location(lake)):
        settings["spark.driver.extraClassPath"] = class_path(["spark", "s3"])
    spark = start_session(app_name, settings, is_quiet=True)
    reap_jvm_at_its_end(spark)
    return spark


def create_views(
    spark: SparkSession,
    path: str | LakeLocation,
    prefix: str = "",
    bodies: Mapping[str, BodySchema] | None = None,
) -> int:
    """Makes a temporary view of each table of a lake, as of its newest committed epoch.

    Beside the tables of the protocol there is `messages`: all topic tables in one, each row with
    its `topic`. A second call shows newer epochs.

    Input: `prefix` stands before each name; `bodies`: by topic, the schema of its bodies
    (`txlake.read_schema`): such a topic is a view by its name, with typed columns beside the raw
    body. Left out is one of a table's name, one that an older topic has but for the case, and one
    that the lake does not have yet.
    Output: the epoch.
    Errors: LakeError in one sentence, if there is no lake that can be read.
    """
    lake = _lake(spark, path)
    progress = require_recorded(lake)

    if progress.last is None:
        raise LakeError(f"the lake {lake.path} has no committed epoch yet")
    epoch = progress.last.epoch

    for table, schema in TABLES.items():
        rows = _rows(spark, lake, table)
        known = rows.where(f"epoch <= {epoch}") if "epoch" in schema.names else rows
        known.createOrReplaceTempView(f"{prefix}{table}")

    for table in filter(lake.is_table, CONSUMER_TABLES):
        _rows(spark, lake, table).createOrReplaceTempView(prefix + table)

    messages = [
        f"SELECT {_literal(topic)} AS topic, * FROM {_source(lake, table)} WHERE epoch <= {epoch}"
        for topic, table in _topics(lake, epoch).items()
    ]
    empty = spark.createDataFrame([], spark_schema(TOPIC)).selectExpr("'' AS topic", "*")
    all_messages = spark.sql(union_all(messages)) if messages else empty
    all_messages.createOrReplaceTempView(prefix + _MESSAGES)

    for topic, table in _named_topics(lake, epoch).items():
        if topic not in (bodies or {}):
            continue

        rows = _rows(spark, lake, table).where(f"epoch <= {epoch}")
        view = f"{prefix}{topic}".replace("`", "``")
        with_body_columns(rows, (bodies or {})[topic]).createOrReplaceTempView(f"`{view}`")

    return epoch


def _named_topics(lake: Lake, epoch: int) -> dict[str, str]:
    """Returns the tables of the topics that a view can have by their names; Spark ignores case.

    Our own tables come before topics, and older topics before younger ones.
    """
    taken = {name.lower() for name in (*TABLES, *CONSUMER_TABLES, _MESSAGES)}
    named = {}

    for topic, table in _topics(lake, epoch).items():
        if topic.lower() not in taken:
            taken.add(topic.lower())
            named[topic] = table

    return named


def with_body_columns(rows: DataFrame, schema: BodySchema) -> DataFrame:
    """Returns messages with the fields of their bodies as columns behind their own.

    A frame or a stream of `read_topic`, `read_topic_stream`; the executors need txlake and pyarrow.
    """
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined] # it is there

    def decode(bodies: pa.Array) -> pa.Array:
        return schema.decode(bodies)

    as_struct = arrow_udf(decode, spark_schema(schema.columns))
    decoded = rows.withColumn("decoded", as_struct(rows["body"]))

    own = [decoded[name] for name in rows.columns]
    typed = [decoded["decoded"].getField(name).alias(name) for name in schema.columns.names]
    return decoded.select(*own, *typed)


def read_topic(spark: SparkSession, path: str | LakeLocation, topic: str) -> DataFrame:
    """Returns the messages of a real topic as of now.

    Output: TOPIC of docs/protocol/tables.md "Tables"; sort by `queue_id`, `queue_offset` for
    their order.
    Errors: LakeError if the lake cannot be read, or lacks the topic.
    """
    lake = _lake(spark, path)
    return _rows(spark, lake, _topic_table(lake, topic))


def read_topic_stream(
    spark: SparkSession,
    path: str | LakeLocation,
    topic: str,
    starting_offsets: Mapping[int, int] | None = None,
    **options: str | int,
) -> DataFrame:
    """Returns a stream of a real topic's messages: the existing ones, then each new one, once.

    Merges of the table's files and their clean-up stay hidden. A micro-batch has no order of its
    own, and can have a part of an epoch.

    A stream that was stopped continues from its own checkpoint. It can be away for
    `maintenance.stream_retention_ms`; after that it fails (DELTA_MISSING_FILES_UNEXPECTED_VERSION,
    or a missing file). Then give it a new checkpoint, and `starting_offsets` from the rows in its
    sink.

    Input: `starting_offsets`: the next offset to read of each queue, like Kafka's startingOffsets;
    a queue without one begins at its first message. `options`: those of
    delta-spark's stream, such as maxFilesPerTrigger.
    Output: as `read_topic`.
    Errors: LakeError as `read_topic`; ValueError for an offset below 0.
    """
    lake = _lake(spark, path)
    table = _in_spark(lake, _topic_table(lake, topic))
    rows = spark.readStream.format("delta").options(**options).load(table)

    for queue_id, offset in (starting_offsets or {}).items():
        if queue_id < 0 or offset < 0:
            raise ValueError(f"queue {queue_id}, offset {offset}: neither can be below 0")

    if not starting_offsets:
        return rows

    # A map, and not a term a queue: with 2,000 terms Spark's optimizer filled a heap of 1 GB.
    queue_ids = ", ".join(map(str, starting_offsets))
    offsets = ", ".join(f"{offset}L" for offset in starting_offsets.values())
    first = f"try_element_at(map_from_arrays(array({queue_ids}), array({offsets})), queue_id)"
    return rows.where(f"queue_offset >= coalesce({first}, 0L)")


def append_once(rows: DataFrame, batch_id: int, path: str, app_id: str | None = None) -> None:
    """Appends a micro-batch to a Delta table once, however often Spark runs the micro-batch.

    For `foreachBatch`. The commit carries a Delta transaction identifier: the query's id, which its
    checkpoint keeps, and the micro-batch's number. Delta leaves out a number that it has had. One
    function can append to several tables so; each is exact for itself. A new checkpoint is another
    query: give its stream `starting_offsets`, or it appends all messages again.

    Input: what the stream gives `foreachBatch`; `app_id`: in the place of the query's id.
    Replay: changes nothing the second time.
    Errors: ValueError outside of a stream without `app_id`.
    """
    app_id = app_id or rows.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not app_id:
        raise ValueError("append_once: outside of foreachBatch it needs an app_id")

    writer = rows.write.format("delta").mode("append")
    writer.option("txnAppId", app_id).option("txnVersion", str(batch_id)).save(path)


def _lake(spark: SparkSession, path: str | LakeLocation) -> Lake:
    lake = Lake(path)
    lake.lake_id()
    if is_s3(lake.location):
        _allow_reading(spark, lake.location)
    return lake


def _allow_reading(spark: SparkSession, location: LakeLocation) -> None:
    """Gives Hadoop the access to a bucket.

    Spark's settings cannot hold it: they appear in its UI, its event log and the JVM's command
    line.
    """
    hadoop = hadoop_configuration(spark)
    bucket = location.path.partition("://")[2].split("/")[0]
    s3 = s3_access(location)
    access = {
        "endpoint": s3.endpoint,
        "endpoint.region": s3.region,
        "access.key": s3.access_key_id,
        "secret.key": s3.secret_access_key,
        "session.token": s3.session_token,
        "path.style.access": "true" if s3.endpoint and not s3.is_virtual_hosted else None,
    }

    for key, value in access.items():
        if value:
            hadoop.set(f"fs.s3a.bucket.{bucket}.{key}", value)


def _in_spark(lake: Lake, table: str) -> str:
    """Returns a table's path for Spark."""
    path = lake.table_path(table)
    return f"s3a://{path.removeprefix('s3://')}" if path.startswith("s3://") else path


def _topics(lake: Lake, epoch: int | None = None) -> dict[str, str]:
    """Returns the table of each real topic, by name, the oldest topic first.

    Input: `epoch`: the one up to which topics count; None: all, also one without its table yet.
    """
    until = None if epoch is None else pc.field("epoch") <= epoch
    rows = lake.read("catalog", ["topic", "table_id"], until).to_pylist()
    numbers = {row["topic"]: row["table_id"] for row in rows}
    return {topic: f"topics/{numbers[topic]}" for topic in sorted(numbers, key=numbers.__getitem__)}


def _topic_table(lake: Lake, topic: str) -> str:
    topics = _topics(lake)
    require_readable(lake, [topics[topic]] if topic in topics else [])

    if topic not in topics or not lake.is_table(topics[topic]):
        names = ", ".join(sorted(topics.keys() - {topic})) or "none"
        raise LakeError(f"the lake {lake.path} has no topic {topic!r}; there is: {names}")
    return topics[topic]


def _rows(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    return spark.read.format("delta").load(_in_spark(lake, table))


def _source(lake: Lake, table: str) -> str:
    return f"delta.`{_in_spark(lake, table).replace('`', '``')}`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
