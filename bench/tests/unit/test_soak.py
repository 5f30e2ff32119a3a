"""The soak: a tiny one, its steady traffic, and what its ratios are made of."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.figure import MET, MISSED
from bench.soak.growth import JUDGED, TOLD, figures, quarters, ratio
from bench.soak.kafka import EPOCH_MS, TOPICS, MemoryKafka
from bench.soak.look import Look
from bench.soak.memory_job import Spent
from bench.soak.stories import STORIES
from bench.soak.traffic import SHOP, Traffic, World
from tests.support.wait import wait_until
from txlake import protocol as p

ROOT = Path(__file__).parents[3]
RETENTION = 10


def looks(sizes: list[int]) -> list[Look]:
    found = []
    for number, size in enumerate(sizes, 1):
        one = Look(10 * number, Spent(0.1, 0.1, 0.1), Spent(0.1, 0.1, 0.1), 0.1, 1_000, 5)
        one.data_bytes["half"] = size
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("sizes", "expected", "verdict"),
    [
        pytest.param([1, 100, 100, 100], 1.0, MET, id="the first quarter is not looked at"),
        pytest.param([1, 100, 500, 105], 1.05, MET, id="as much as is allowed"),
        pytest.param([1, 100, 100, 106], 1.06, MISSED, id="more than is allowed"),
        pytest.param([9, 9, 1, 3, 7, 7, 2, 6], 2.0, MISSED, id="means of some looks"),
        pytest.param([1, 0, 0, 0], 1.0, MET, id="nothing is there"),
    ],
)
def test_growth_is_the_last_quarter_over_the_second(
    sizes: list[int], expected: float, verdict: str
) -> None:
    found = {figure.name: figure for figure in figures(looks(sizes), {})}

    assert found["bytes"].value == pytest.approx(expected)
    assert found["bytes"].verdict == verdict


@pytest.mark.parametrize(
    ("reference_s", "expected"),
    [
        pytest.param([9, 1, 1, 2], 1.0, id="a machine that became slower"),
        pytest.param([9, 1, 1, 1], 2.0, id="epochs that became slower"),
    ],
)
def test_times_are_those_of_an_epoch_over_the_reference(
    reference_s: list[float], expected: float
) -> None:
    aging = looks([1, 1, 1, 1])
    for one, epoch_s, other_s in zip(aging, [9, 1, 1, 2], reference_s, strict=True):
        one.spent, one.reference = Spent(*[epoch_s] * 3), Spent(*[other_s] * 3)
        one.start_s = epoch_s

    found = {figure.name: figure for figure in figures(aging, {})}

    for name in ("epoch, processor", "epoch, wall", "maintenance, wall", "start, processor"):
        assert found[name].value == pytest.approx(expected)
    assert found["epoch, processor in ms"].samples == [9000, 1000, 1000, 2000]
    assert found["epoch, processor in ms"].must is None


def test_what_was_not_there_in_the_second_quarter_has_grown_without_end() -> None:
    assert ratio([1, 0, 0, 1]) == float("inf")


def test_fewer_looks_than_quarters_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 looks"):
        quarters(looks([1, 2, 3]), lambda look: look.epoch)


def _told(minutes: int) -> tuple[Traffic, MemoryKafka]:
    kafka = MemoryKafka()
    traffic = Traffic(World(kafka, random.Random(1), RETENTION), STORIES, 2.0)
    for minute in range(minutes):
        traffic.minute(minute, minute * EPOCH_MS)
        if minute < minutes - 1:
            kafka.take()
    return traffic, kafka


def test_stories_that_are_being_told_do_not_become_more() -> None:
    assert _told(100 * RETENTION)[0].telling < 1.2 * _told(10 * RETENTION)[0].telling


def test_records_of_a_minute_have_its_instants_and_the_next_offsets() -> None:
    _, kafka = _told(50)
    ends = kafka.end_offsets(kafka.partitions())

    rows = kafka.take().to_pylist()

    assert rows
    for row in rows:
        assert 49 <= row["timestamp"].timestamp() / 60 < 50
    for topic in TOPICS.values():
        offsets = [row["offset"] for row in rows if (row["topic"], row["partition"]) == (topic, 0)]
        assert offsets == list(range(ends[topic, 0] - len(offsets), ends[topic, 0]))
    assert kafka.take().num_rows == 0


def test_a_check_is_answered_in_the_next_minute() -> None:
    traffic, kafka = _told(1)
    traffic.asked(
        {
            p.PGROUP: SHOP,
            p.HALF_QUEUE_ID: "1",
            p.HALF_QUEUE_OFFSET: "7,8",
            p.UNIQ_KEY: "tx",
            p.CHECK_ID: "1-7-0-1",
        }
    )

    traffic.minute(1, EPOCH_MS)

    answers = [
        {header["key"]: header["value"] for header in row["headers"]}
        for row in kafka.take().to_pylist()
    ]
    assert Counter(answer.get(p.CHECK_ID) for answer in answers)[b"1-7-0-1"] == 1


@pytest.mark.soak
def test_a_soak_that_is_stopped_ends_its_epoch_and_reports(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bench.soak",
            "--epochs",
            "40",
            "--report",
            str(tmp_path / "report"),
            "--folder",
            str(tmp_path),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "lake" / "epochs" / "_delta_log"

    def commits() -> int:
        return max((int(path.stem) for path in log.glob("*.json")), default=0)

    try:
        wait_until(lambda: commits() > 60, "more than half of its epochs", 300, seen=commits)
        running.terminate()
        said, _ = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 0, said
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert 20 <= report["parameters"]["epochs"] < 40
    assert "stopped after epoch" in said


@pytest.mark.soak
def test_a_tiny_soak_deletes_what_is_old_and_verify_finds_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.soak",
            "--epochs",
            "20",
            "--retention",
            "5",
            "--report",
            str(tmp_path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    report = json.loads((tmp_path / "report.json").read_text())

    found = {figure["name"]: figure for figure in report["figures"]}
    assert found.keys() >= JUDGED.keys() | TOLD.keys()
    assert all(found[name]["value"] > 0 for name in TOLD)
    end = found["violations"]["details"]
    assert end["floor"]["deleted"] > 0
    assert end["numbers"]["epochs"] < 20
    assert end["messages consumed"] > 0
    assert len(list(tmp_path.glob("*.png"))) == sum(len(f["plots"]) for f in report["figures"])
