"""Spark reads a lake in a store: its views, a topic, a topic as a stream; the secret is not shown.

Hadoop's S3A is an optional set of jars, which a JVM has from its start on: so it is one of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from pipelines.local_store.store import Store
from pipelines.replay import rebuild
from storage.files.location import LakeLocation, lake_location
from storage.lake.lake import Lake
from tests.support.class_archive import quick_java
from tests.support.sound_lake import sound_rows
from tests.support.store import make_bucket, need

_READER = """
import json, sys
from pipelines.spark_tables import create_views, open_spark, read_topic, read_topic_stream
from storage.files.location import lake_location

asked = json.load(sys.stdin)
location = lake_location(asked["uri"], asked["options"])
spark = open_spark(lake=location)
epoch = create_views(spark, location)
outcomes = spark.sql("SELECT outcome, count(*) FROM outcomes GROUP BY ALL").collect()
stream = (
    read_topic_stream(spark, location, "orders").writeStream.format("memory").queryName("streamed")
    .option("checkpointLocation", asked["checkpoint"]).trigger(availableNow=True).start()
)
stream.awaitTermination()
jvm = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()
shown = [*map(str, spark.sparkContext.getConf().getAll()), *jvm.getInputArguments(),
         *map(str, spark.conf.getAll.items())]
bodies_of = lambda frame: sorted(bytes(row["body"]).hex() for row in frame.collect())
print(json.dumps({
    "epoch": epoch,
    "outcomes": {row[0]: row[1] for row in outcomes},
    "topic": bodies_of(read_topic(spark, location, "orders")),
    "stream": bodies_of(spark.table("streamed")),
    "shown": shown,
}))
spark.stop()
"""


def _append_as_a_driver(location: LakeLocation) -> None:
    """Commit a message by an entry of the driver's own, not by delta-rs."""
    driver = Lake(location, is_driver=True)
    ids = {row["topic"]: row["table_id"] for row in driver.read("catalog").to_pylist()}
    table = f"topics/{ids['orders']}"
    rows = driver.read(table)
    last = max(rows.to_pylist(), key=lambda row: (row["queue_id"], row["queue_offset"]))
    last |= {"queue_offset": last["queue_offset"] + 1, "body": b"by the driver"}
    driver.append(table, pa.Table.from_pylist([last], schema=rows.schema), 13)
    newest = location.filesystem(f"{table}/_delta_log")
    version = driver.table(table).version()
    entry = newest.open_input_stream(f"{version:020}.json").read()
    assert b'"engineInfo": "txlake"' in entry


def test_spark_reads_a_lake_in_a_store_and_shows_no_secret(store: Store, tmp_path: Path) -> None:
    need("s3")
    bucket = make_bucket(store, f"spark-{time.time_ns()}")
    location = lake_location(f"{bucket.uri}/lake", bucket.options)
    rebuild(sound_rows().write(tmp_path / "sound").path, location)
    _append_as_a_driver(location)
    asked = {
        "uri": location.path,
        "options": bucket.options,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _READER],
        cwd=tmp_path,
        input=json.dumps(asked),
        env={**os.environ, **quick_java(tmp_path / "temp")},
        text=True,
        capture_output=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    told = json.loads(done.stdout.splitlines()[-1])
    lake = Lake(location)
    ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
    bodies = sorted(body.hex() for body in lake.read(f"topics/{ids['orders']}")["body"].to_pylist())
    outcomes = lake.read("outcomes", ["outcome"])["outcome"].to_pylist()
    assert told["epoch"] == 12
    assert told["outcomes"] == {name: outcomes.count(name) for name in set(outcomes)}
    assert told["topic"] == told["stream"] == bodies
    assert any("spark.driver.extraClassPath" in line for line in told["shown"])
    assert not any(bucket.keys.secret_access_key in line for line in told["shown"])
    assert bucket.keys.secret_access_key not in done.stdout + done.stderr
