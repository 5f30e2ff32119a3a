"""The benchmark works, and its report has everything; what it measured here says nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import measure
from bench.load import run_load
from bench.report import JSON_NAME, MARKDOWN_NAME, write
from bench.sample_data import Mix
from bench.sizes import TINY
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from storage.lake.lake import Lake

pytestmark = pytest.mark.soak


def test_a_figure_is_measured_and_reported_with_all_that_explains_it(
    broker: Broker, tmp_path: Path
) -> None:
    bench = Workbench(TINY, tmp_path, broker, lambda text: None)

    report = measure(bench, ["drain"])
    write(report, tmp_path / "report")

    # The sample data is what the SDK would have sent: all can be read, and what committed is there.
    lake = Lake(str(tmp_path / "lakes" / "drain"))
    halves = lake.read("half", ["error", "body"])
    assert halves.num_rows == TINY.drain_transactions
    assert halves["error"].null_count == halves.num_rows
    assert {len(body) for body in halves["body"].to_pylist()} == {Mix().body_bytes}
    outcomes = lake.read("outcomes", ["outcome"])["outcome"].to_pylist()
    assert set(outcomes) == {"COMMITTED", "ROLLED_BACK"}
    assert len(outcomes) + lake.read("pending").num_rows == halves.num_rows

    written = json.loads((tmp_path / "report" / JSON_NAME).read_text("utf-8"))
    assert set(written) == {
        "size",
        "date",
        "commit",
        "machine",
        "versions",
        "parameters",
        "seconds",
        "load",
        "figures",
        "failed",
    }
    assert written["failed"] == {}
    assert written["parameters"]["drain_transactions"] == TINY.drain_transactions
    assert {"cores", "memory_gib", "processor"} <= set(written["machine"])
    assert {"python", "java", "kafka", "pyspark", "deltalake"} <= set(written["versions"])

    drain, driver = written["figures"]
    assert set(drain) == {
        "name",
        "value",
        "unit",
        "how",
        "better",
        "must",
        "aim",
        "samples",
        "details",
        "parameters",
        "plots",
        "verdict",
    }
    assert drain["value"] > 0
    assert len(drain["samples"]) == drain["details"]["epochs"]
    assert {"gather", "decide", "apply"} <= set(drain["details"]["step_s"])
    assert 0 < driver["value"] < driver["details"]["of_all_processes_us"]

    markdown = (tmp_path / "report" / MARKDOWN_NAME).read_text("utf-8")
    assert "| drain | " in markdown
    assert (tmp_path / "report" / "drain-1.png").read_bytes()[:4] == b"\x89PNG"
    assert "![drain: transactions a second, by epoch](drain-1.png)" in markdown


def test_a_publisher_and_a_consumer_of_kafka_take_the_place_of_the_sdks_consumer(
    broker: Broker, tmp_path: Path
) -> None:
    bench = Workbench(TINY, tmp_path, broker, lambda text: None)
    run = run_load(
        bench,
        "published",
        TINY.sustained_s,
        ["--in-flight", str(TINY.in_flight)],
        consumes_kafka=True,
        publish={"bench": {}},
    )

    assert set(run.processor) == {"producer", "publisher", "consumer", "job", "broker"}
    assert len(run.ages_ms()) > 1
    _, committed, consumed = run.counts[-1]
    assert committed >= consumed > 0
