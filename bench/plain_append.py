"""The plainest job there could be: append the half topic to one Delta table, as decoded columns.

    python -m bench.plain_append --conf job.toml --into FOLDER

What exactness costs is measured against it. Same Spark settings, same size of a batch, same
decoding, but no decision and no order, and each record is written once. Prints one line of JSON:
the records, the seconds from the first batch's beginning to the last one's end, and the processor
time of this process and its JVM meanwhile.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from bench.usage import processor_s
from pipelines.jvm.session import start_session
from pipelines.kafka_client.options import spark_options
from pipelines.settings import Settings, load
from storage import schemas
from storage.wire.decode import KAFKA_COLUMNS, RECORDS, decode_rows
from storage.wire.record_kinds import WireLimits


def append(settings: Settings, into: Path) -> dict[str, float]:
    """Append all that waits. Output: records, seconds, processor_s."""
    from pyspark.sql.pandas.types import from_arrow_schema

    progress = {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
    spark = start_session("plain", {**settings.spark, **progress})
    records = (
        spark.readStream.format("kafka")
        .options(**spark_options(settings.kafka))
        .option("includeHeaders", "true")
        .option("subscribe", settings.kafka.half_topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", settings.stream.max_offsets_per_trigger)
        .load()
    )
    columns = [name for name in schemas.HALF.names if name != "epoch"]
    before = processor_s(os.getpgrp())
    query = (
        records.select(*KAFKA_COLUMNS)
        .mapInArrow(partial(_decoded, limits=settings.wire_limits()), from_arrow_schema(RECORDS))
        .selectExpr(*columns)
        .writeStream.format("delta")
        .option("checkpointLocation", str(into / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(into / "half"))
    )
    query.awaitTermination()
    used = processor_s(os.getpgrp()) - before
    batches = [p for p in query.recentProgress if p["numInputRows"]]
    spark.stop()
    ends = [_instant(p["timestamp"]) + p["batchDuration"] / 1000 for p in batches]
    return {
        "records": sum(p["numInputRows"] for p in batches),
        "seconds": max(ends) - _instant(batches[0]["timestamp"]),
        "processor_s": used,
    }


def _decoded(batches: Iterable[pa.RecordBatch], limits: WireLimits) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from decode_rows(pa.Table.from_batches([batch]), limits).to_batches()


def _instant(text: str) -> float:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> None:
    """Append, and print what it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conf", required=True)
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    print(json.dumps(append(load(options.conf), options.into)), flush=True)


if __name__ == "__main__":
    main()
