"""Spark reads a lake through delta-spark: its tables, a topic, and a stream of a topic."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pipelines.spark_tables import create_views, read_topic, read_topic_stream
from storage.errors import LakeError
from storage.lake.lake import Lake
from storage.maintenance.limits import MaintenanceLimits, StepResult
from storage.maintenance.maintenance import Maintenance
from storage.rows import instant
from storage.schemas import TABLES, TOPIC
from tests.support.damage import run_job
from tests.support.lake_rows import NOW
from tests.support.sound_lake import sound_rows
from txlake.protocol import COMMIT

WEEK_MS = 7 * 86_400_000
# Everything goes at once that may go; what streams need is kept for a week.
KEPT = MaintenanceLimits(
    3, 1 << 25, 2, log_retention_ms=0, file_retention_ms=0, stream_retention_ms=WEEK_MS
)
GONE = MaintenanceLimits(
    3, 1 << 25, 2, log_retention_ms=0, file_retention_ms=0, stream_retention_ms=0
)
PLACE = ["queue_id", "queue_offset"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return sound_rows().write(tmp_path_factory.mktemp("spark") / "lake")


@pytest.fixture
def views(spark: SparkSession, sound: Lake) -> Iterator[int]:
    yield create_views(spark, sound.path, "sound_")
    for view in spark.catalog.listTables():
        spark.catalog.dropTempView(view.name)


def in_spark(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows that delta-rs and Arrow have read as a frame of Spark."""
    return spark.createDataFrame(rows)


def test_each_table_is_a_view_with_the_rows_of_committed_epochs(
    spark: SparkSession, sound: Lake, views: int
) -> None:
    epochs = sound.read("epochs")
    assert views == pc.max(epochs.filter(pc.equal(epochs["state"], "committed"))["epoch"]).as_py()
    for table, schema in TABLES.items():
        rows = sound.read(table)
        if "epoch" in schema.names:
            rows = rows.filter(pc.less_equal(rows["epoch"], views))
        found = spark.table(f"sound_{table}")
        order = [name for name, kind in found.dtypes if "map<" not in kind]
        assert_df_equality(
            found.orderBy(*order), in_spark(spark, rows).orderBy(*order), ignore_nullable=True
        )


def test_messages_are_those_of_all_topics(spark: SparkSession, sound: Lake, views: int) -> None:
    catalog = {row["topic"]: row["table_id"] for row in sound.read("catalog").to_pylist()}
    found = spark.sql("SELECT topic, count(*) AS n FROM sound_messages GROUP BY topic").collect()
    expected = {topic: sound.read(f"topics/{number}").num_rows for topic, number in catalog.items()}
    assert {row["topic"]: row["n"] for row in found} == {k: n for k, n in expected.items() if n}
    assert len(expected) > 2


def test_a_topic_is_read_by_its_name(spark: SparkSession, sound: Lake) -> None:
    catalog = {row["topic"]: row["table_id"] for row in sound.read("catalog").to_pylist()}
    for topic, number in catalog.items():
        rows = in_spark(spark, sound.read(f"topics/{number}"))
        found = read_topic(spark, sound.path, topic)
        assert_df_equality(found.orderBy(*PLACE), rows.orderBy(*PLACE), ignore_nullable=True)


def test_a_lake_and_a_checkpoint_are_read_in_folders_of_unusual_names(
    spark: SparkSession, sound: Lake, views: int, tmp_path: Path
) -> None:
    lake, checkpoint = tmp_path / "100% #a?*{b}`c" / "lake", tmp_path / "a%20b\\[c]|"
    shutil.copytree(sound.path, lake)
    assert create_views(spark, str(lake), "strange_") == views
    count = spark.table("sound_messages").count()
    assert spark.table("strange_messages").count() == count > 0

    rows = read_topic_stream(spark, str(lake), "orders").writeStream.format("memory")
    query = rows.queryName("strange").option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.table("strange").count() == read_topic(spark, str(lake), "orders").count()
    assert (checkpoint / "metadata").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {lake.parent.name, checkpoint.name}


def test_what_is_not_there_is_one_sentence(
    spark: SparkSession, sound: Lake, tmp_path: Path
) -> None:
    with pytest.raises(LakeError, match=r"""has no topic "no'such"; there is: .*orders"""):
        read_topic(spark, sound.path, "no'such")
    with pytest.raises(LakeError, match="is not a lake: `txlake run` makes one there"):
        read_topic_stream(spark, str(tmp_path / "nothing"), "orders")
    empty = Lake(str(tmp_path / "empty"))
    empty.create(NOW)
    with pytest.raises(LakeError, match="has no committed epoch yet"):
        create_views(spark, empty.path)
    with pytest.raises(ValueError, match="queue 0, offset -1: neither can be below 0"):
        read_topic_stream(spark, sound.path, "orders", {0: -1})


def test_a_topic_that_is_being_made_is_not_there_yet(spark: SparkSession, tmp_path: Path) -> None:
    """An epoch writes its row of the catalog, then makes the table."""
    job = run_job(tmp_path / "lake")
    job.end(COMMIT, job.half("new", real_topic="new"))
    job.run(commit=False)
    shutil.rmtree(tmp_path / "lake" / "topics" / str(pc.max(job.state.topics["table_id"])))

    assert create_views(spark, job.lake.path, "young_") == job.epoch - 1
    assert spark.table("young_messages").count() > 0
    with pytest.raises(LakeError, match=r"has no topic 'new'; there is: .*orders"):
        read_topic(spark, job.lake.path, "new")


class Shop:
    """A topic that grows by an epoch at a time, and a stream that copies it into another table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.lake = Lake(str(folder / "lake"), is_driver=True)
        self.lake.create(NOW)
        self.lake.create_table("topics/1")
        catalog = {
            "topic": "shop's",
            "table_id": 1,
            "queue_count": 2,
            "epoch": 1,
            "created_at": NOW,
        }
        self.lake.append("catalog", pa.Table.from_pylist([catalog], TABLES["catalog"]), 1)
        self.sink, self._checkpoint = str(folder / "sink"), str(folder / "checkpoint")
        self.epoch = 0

    def sell(self, epochs: int) -> None:
        for _ in range(epochs):
            self.epoch += 1
            rows = [
                {
                    "queue_id": queue,
                    "queue_offset": 5 * self.epoch - 5 + n,
                    "epoch": self.epoch,
                    "stored_at": instant(1_767_225_600_000 + self.epoch),
                    "source": "half",
                    "body": f"{queue}, {self.epoch}, {n}".encode(),
                    "properties": [("n", str(n))],
                }
                for queue in range(2)
                for n in range(5)
            ]
            self.lake.append("topics/1", pa.Table.from_pylist(rows, TOPIC), self.epoch)

    def maintain(self, limits: MaintenanceLimits, rounds: int = 2) -> StepResult:
        """Merge and delete all that may go; a second round deletes what the first one replaced."""
        done = StepResult()
        for _ in range(rounds):
            maintenance = Maintenance(Lake(self.lake.path, is_driver=True), limits)
            done = sum(maintenance.steps("topics/1", is_full=True), done)
        return done

    def stream(self, **options: int) -> None:
        """Copy what is new, and stop."""
        self.copy(read_topic_stream(self.spark, self.lake.path, "shop's", None, **options))

    def copy(self, rows: DataFrame) -> None:
        query = (
            rows.writeStream.format("delta")
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start(self.sink)
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def begin_anew(self) -> None:
        self._checkpoint += "-2"

    def copied(self) -> DataFrame:
        return self.spark.read.format("delta").load(self.sink)

    def check(self) -> None:
        """Check that each message was copied once."""
        found, there = self.copied(), read_topic(self.spark, self.lake.path, "shop's")
        assert found.count() == 10 * self.epoch
        assert_df_equality(found.orderBy(*PLACE), there.orderBy(*PLACE))


def test_a_stream_is_stopped_outlives_merges_and_clean_up_and_sees_every_message_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path)
    shop.sell(4)
    shop.stream()
    shop.check()
    for _ in range(2):
        shop.sell(7)
        done = shop.maintain(KEPT)
        assert done.merges and done.checkpoints
        shop.sell(2)
        shop.stream(maxFilesPerTrigger=2)
        shop.check()


def test_a_stream_begins_over_merged_files_and_is_stopped_in_the_midst_of_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path)
    shop.sell(6)
    shop.maintain(KEPT)
    shop.sell(5)
    rows = read_topic_stream(spark, shop.lake.path, "shop's", maxFilesPerTrigger=1)
    query = (
        rows.writeStream.format("delta")
        .option("checkpointLocation", shop._checkpoint)
        .trigger(processingTime="0 seconds")
        .start(shop.sink)
    )
    while not query.lastProgress or query.lastProgress["batchId"] < 1:
        assert query.isActive
        query.awaitTermination(0.1)
    query.stop()
    shop.maintain(KEPT)
    shop.sell(3)
    shop.stream()
    shop.check()


def test_a_stream_that_was_away_for_too_long_goes_on_from_the_offsets_it_has_copied(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(spark, tmp_path)
    shop.sell(4)
    shop.stream()
    shop.sell(4)
    shop.maintain(GONE)
    shop.sell(3)
    shop.maintain(GONE)
    with pytest.raises(StreamingQueryException, match=r"DELTA_|FileNotFound|FILE_NOT_EXIST"):
        shop.stream()
    shop.begin_anew()
    reached = shop.copied().groupBy("queue_id").agg({"queue_offset": "max"}).collect()
    starting = {row["queue_id"]: row["max(queue_offset)"] + 1 for row in reached}
    starting |= dict.fromkeys(range(2, 3_000), 0)  # as many as a large topic has
    shop.copy(read_topic_stream(spark, shop.lake.path, "shop's", starting))
    shop.check()
    shop.sell(2)
    shop.stream()
    shop.check()
