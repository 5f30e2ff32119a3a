"""The benchmark's own arithmetic: verdicts, percentiles, epoch times, what its processes say."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.__main__ import FIGURES
from bench.bodies import JSON, KINDS, RANDOM, bodies
from bench.counter_file import CounterFile
from bench.epoch_times import BETWEEN, cadence_s, epoch_times, steps_s
from bench.event_log import summarize
from bench.figure import MET, MISSED, NOT_JUDGED, REACHED, Figure, percentile
from bench.job_process import toml
from bench.readable import readable_at
from bench.report import JSON_NAME, MARKDOWN_NAME, Report, write
from bench.usage import own_processor_s, own_resident_bytes
from pipelines.settings import load, parse
from storage import schemas
from storage.lake.epochs import Plan, Range, committed_row, planned_row
from storage.lake.lake import Lake
from storage.rows import instant

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("better", "value", "verdict"),
    [
        ("less", 1.1, REACHED),
        ("less", 1.11, MET),
        ("less", 1.3, MET),
        ("less", 1.31, MISSED),
        ("more", 0.9, MISSED),
        ("less", None, MISSED),
    ],
)
def test_a_verdict_compares_with_must_and_aim(better: str, value: float, verdict: str) -> None:
    must, aim = (1.3, 1.1) if better == "less" else (1.0, 2.0)
    assert Figure("f", value, "s", "how", better, must, aim).verdict == verdict  # type: ignore[arg-type]


def test_a_figure_of_which_nothing_is_asked_is_not_judged() -> None:
    assert Figure("f", 1.0, "s", "how").verdict == NOT_JUDGED
    assert Figure("f", None, "s", "how").verdict == NOT_JUDGED


@pytest.mark.parametrize(("per_cent", "found"), [(0, 1), (50, 2), (51, 3), (99, 4), (100, 4)])
def test_a_percentile_is_the_smallest_sample_that_so_many_do_not_exceed(
    per_cent: float, found: float
) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], per_cent) == found


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        percentile([], 50)


def test_every_figure_has_its_module_and_is_in_the_guide() -> None:
    modules = {path.stem for path in (ROOT / "bench" / "figures").glob("*.py")}
    assert modules == set(FIGURES)
    guide = (ROOT / "docs" / "PERFORMANCE.md").read_text("utf-8")
    assert [name for name in FIGURES if f"| `{name}` |" not in guide] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [11, 74, 75, 76, 256, 2_048, 65_536])
def test_a_body_has_the_size_that_was_asked_for(kind: str, size: int) -> None:
    of_kind = bodies(kind, size)
    one, other = next(of_kind), next(of_kind)
    assert len(one) == len(other) == size
    if kind == JSON:
        assert isinstance(json.loads(one), dict)
    if size >= 75:  # a shorter JSON body has no room for a value
        assert one != other


@pytest.mark.parametrize(("kind", "size"), [("xml", 256), (JSON, 10)])
def test_a_body_that_cannot_be_made_is_refused(kind: str, size: int) -> None:
    with pytest.raises(ValueError, match="bod"):
        bodies(kind, size)


@pytest.mark.parametrize("size", [256, 2_048, 65_536])
@pytest.mark.parametrize(
    ("kind", "level", "least", "most"),
    [(JSON, -3, 0.4, 0.7), (JSON, 1, 0.2, 0.5), (RANDOM, 1, 0.99, 1.2)],
)
def test_about_half_of_a_json_body_compresses_away(
    tmp_path: Path, kind: str, level: int, least: float, most: float, size: int
) -> None:
    made = list(itertools.islice(bodies(kind, size), 2_000_000 // size))
    assert len(set(made)) == len(made)
    pq.write_table(
        pa.table({"body": made}),
        tmp_path / "f.parquet",
        compression="zstd",
        compression_level=level,
    )
    assert least < (tmp_path / "f.parquet").stat().st_size / sum(map(len, made)) < most


def test_a_process_is_measured_without_its_children() -> None:
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    while time.process_time() < 0.3:
        sum(range(1_000))
    # The system counts in hundredths of a second; its count of one process has all threads.
    before_s = time.process_time()
    own_s = own_processor_s(os.getpid())
    assert before_s - 0.1 < own_s < time.process_time() + 0.1  # other threads may work meanwhile
    assert own_processor_s(os.getpid()) > 0.25
    assert own_resident_bytes() > 10_000_000


def test_settings_are_written_as_the_job_reads_them(tmp_path: Path) -> None:
    sections: dict[str, dict[str, Any]] = {
        "lake": {"path": str(tmp_path / 'a "lake"')},
        "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        "topics": {"auto_create_topics": False},
        "spark": {"spark.eventLog.enabled": "true"},
    }
    conf = tmp_path / "job.toml"
    conf.write_text(toml(sections), "utf-8")
    assert load(conf) == parse(sections, "here")


def test_a_counter_file_gives_what_was_written_last(tmp_path: Path) -> None:
    writer, reader = CounterFile(tmp_path / "c", 2), CounterFile(tmp_path / "c", 2)
    assert reader.read() == (0, 0)
    writer.write(123, 45_678_901)
    writer.write(124, 9)
    assert reader.read() == (124, 9)


def plan(epoch: int) -> Plan:
    """Return a plan that lands five records."""
    landed = Range("half", 0, 5 * epoch, 5 * epoch + 5, 100)
    return Plan(epoch, 1_000 * epoch, {}, {}, (landed,), "c", {}, {}, "bench", 1)


def test_epoch_times_come_from_the_rows_of_an_epoch(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.create(instant(0))
    for epoch in (1, 2):
        began = instant(10_000 * epoch)
        steps = {"gather": 150, "wait": 50, "decide": 300}
        planned = planned_row(plan(epoch), began + dt.timedelta(milliseconds=200))
        lake.append("epochs", planned)
        ended = began + dt.timedelta(milliseconds=500 * epoch)
        halves = {"landed_half": 4}
        lake.append("epochs", committed_row(plan(epoch), ended, halves, steps, {}, {}))
    lake.append("epochs", planned_row(plan(3), instant(90_000)))  # not committed: left out

    times = epoch_times(lake)

    assert [(t.epoch, t.records, t.halves) for t in times] == [(1, 5, 4), (2, 5, 4)]
    assert [t.began_at for t in times] == [10.0, 20.0]
    assert [t.seconds for t in times] == [0.5, 1.0]
    assert cadence_s(times) == [10.5]
    assert steps_s(times) == {"gather": 0.3, "wait": 0.1, "decide": 0.6, BETWEEN: 9.5}


def test_a_message_is_readable_when_its_commit_is_there(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    lake.create_table("topics/1")
    for epoch in (4, 5):
        row = {"queue_id": 0, "queue_offset": epoch, "epoch": epoch}
        lake.append("topics/1", pa.Table.from_pylist([row], schema=schemas.TOPIC), epoch)
    logs = sorted((tmp_path / "topics" / "1" / "_delta_log").glob("*.json"))
    before = readable_at(tmp_path / "topics" / "1")
    lake.handle("topics/1").optimize.compact()  # rewrites files, and changes nothing
    assert readable_at(tmp_path / "topics" / "1") == before
    assert before == {4: logs[-2].stat().st_mtime, 5: logs[-1].stat().st_mtime}


def test_sparks_jobs_are_added_up_by_what_they_were_for(tmp_path: Path) -> None:
    task = {
        "Executor Run Time": 70,
        "Executor CPU Time": 50_000_000,
        "JVM GC Time": 5,
        "Input Metrics": {"Records Read": 9},
    }

    events = [
        {
            "Event": "SparkListenerJobStart",
            "Job ID": 0,
            "Submission Time": 100,
            "Stage Infos": [{"Stage ID": 0, "Stage Name": "toArrow at gather.py"}],
        },
        {"Event": "SparkListenerTaskEnd", "Stage ID": 0, "Task Metrics": task},
        {"Event": "SparkListenerJobEnd", "Job ID": 0, "Completion Time": 180},
    ]

    log = tmp_path / "app"
    log.write_text("\n".join(map(json.dumps, events)), "utf-8")
    *_, line = summarize([log]).splitlines()
    assert line.split() == ["1", "80", "1", "70", "50", "5", "9", "toArrow", "at", "gather.py"]


def test_a_report_names_what_was_not_measured_and_its_json_can_stand_elsewhere(
    tmp_path: Path,
) -> None:
    machine = {"cores": 2, "processor": "p", "memory_gib": 1, "system": "s", "load_before": 0}
    report = Report("tiny", "today", "abc", machine, {}, {}, {}, {}, [], {"drain": "no broker"})
    write(report, tmp_path / "docs", tmp_path / "build")
    text = (tmp_path / "docs" / MARKDOWN_NAME).read_text("utf-8")
    assert "| drain | - | | | | not measured: no broker |" in text
    assert [path.name for path in (tmp_path / "build").iterdir()] == [JSON_NAME]
