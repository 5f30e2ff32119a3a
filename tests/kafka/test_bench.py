"""The benchmark works, and its report has everything; what it measured here says nothing."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession

from bench.__main__ import measure
from bench.report import JSON_NAME, MARKDOWN_NAME, write
from bench.sizes import TINY
from bench.workbench import Workbench
from pipelines.broker import Broker
from storage.lake import Lake


def test_a_figure_is_measured_and_reported_with_all_that_explains_it(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    bench = Workbench(TINY, tmp_path, broker, lambda text: None, own_spark=spark)

    report = measure(bench, ["many_topics"])
    write(report, tmp_path / "report")

    # The sample data is what the SDK would have sent: all can be read, and what committed is there.
    lake = Lake(str(tmp_path / "lakes" / "topics-many"))
    halves = lake.read("half", ["error"])
    rounds = 2 * TINY.epoch_rounds
    assert halves.num_rows == rounds * TINY.epoch_transactions
    assert halves["error"].null_count == halves.num_rows
    outcomes = lake.read("outcomes", ["outcome"])["outcome"].to_pylist()
    assert len(outcomes) == halves.num_rows
    assert set(outcomes) == {"COMMITTED", "ROLLED_BACK"}
    assert lake.read("catalog").num_rows == TINY.topics

    written = json.loads((tmp_path / "report" / JSON_NAME).read_text("utf-8"))
    assert set(written) == {
        "size", "date", "commit", "machine", "versions", "parameters", "seconds", "load", "figures",
        "failed",
    }  # fmt: skip
    assert written["failed"] == {}
    assert written["parameters"]["epoch_transactions"] == TINY.epoch_transactions
    assert {"cores", "memory_gib", "processor"} <= set(written["machine"])
    assert {"python", "java", "kafka", "pyspark", "deltalake"} <= set(written["versions"])
    (figure,) = written["figures"]
    assert set(figure) == {
        "name", "value", "unit", "how", "better", "must", "aim", "samples", "details",
        "parameters", "plots", "verdict",
    }  # fmt: skip
    assert figure["value"] > 0
    assert len(figure["samples"]) == TINY.epoch_rounds
    assert {"gather", "decide", "apply"} <= set(figure["details"]["one topic"]["median_step_ms"])
    markdown = (tmp_path / "report" / MARKDOWN_NAME).read_text("utf-8")
    assert "| many topics | " in markdown
    assert (tmp_path / "report" / "many-topics-1.png").read_bytes()[:4] == b"\x89PNG"
    assert "![many topics: epochs in turn](many-topics-1.png)" in markdown
