"""The benchmark works, and its report has everything; what it measured here says nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.__main__ import measure
from bench.bodies import RANDOM
from bench.checkout import Checkout
from bench.figures import before_latency, executors, flood
from bench.figures.drain import drained
from bench.report import JSON_NAME, MARKDOWN_NAME, write
from bench.sample_data import Mix
from bench.sizes import TINY
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from storage.lake.lake import Lake

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.soak


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


def test_a_job_drains_in_one_epoch_and_says_what_it_used(broker: Broker, tmp_path: Path) -> None:
    bench = Workbench(TINY, tmp_path, broker, lambda text: None)
    topics, written = bench.waiting(300, Mix(2_048, RANDOM))
    stream = {"max_offsets_per_trigger": 2 * written.records}

    found = drained(bench, "drained", topics, written, stream=stream)

    assert [time.halves for time in found.times] == [300]
    assert 0 < found.driver_s < found.processor_s
    assert found.resident_bytes > 200_000_000
    bodies = Lake(str(tmp_path / "lakes" / "drained")).read("half", ["body"])["body"].to_pylist()
    assert {len(body) for body in bodies} == {2_048}


def test_another_checkouts_job_is_measured_under_the_same_load(
    broker: Broker, tmp_path: Path
) -> None:
    quick = dataclasses.replace(TINY, warm_up_s=0.0, latency_s=2.0, rate=200)
    here = Checkout("this one", ROOT)
    bench = Workbench(quick, tmp_path, broker, lambda text: None, before=here)
    median, high = before_latency.measure(bench)
    assert median.value is not None
    assert 0.05 < median.value < 20
    assert (median.must, median.aim, high.must, high.aim) == (1.0, 0.6, 1.0, 0.6)


def test_others_are_measured_beside_a_group_that_floods(broker: Broker, tmp_path: Path) -> None:
    quick = dataclasses.replace(TINY, warm_up_s=0.0, latency_s=2.0, rate=200)
    bench = Workbench(quick, tmp_path, broker, lambda text: None)
    median, _ = flood.measure(bench)
    assert median.value is not None
    assert median.must == 2.0
    assert "flood" not in median.details["alone"][0]["cores"]
    assert median.details["beside"][0]["cores"]["flood"] > 0


def test_an_epoch_is_measured_on_one_executor_and_on_two(broker: Broker, tmp_path: Path) -> None:
    bench = Workbench(TINY, tmp_path, broker, lambda text: None)
    processor, *_ = executors.measure(bench)  # wall time only where four processors are
    assert processor.value is not None
    assert 0.1 < processor.value < 10
    assert (processor.must, processor.aim) == (1.15, 1.05)
    one = processor.details["one"]
    assert one["of_it_the_driver_s"] < one["median_processor_s"]
