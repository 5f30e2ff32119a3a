"""The benchmark beside RocketMQ: its lock, its ratios, its report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.figure import MET, MISSED, REACHED
from bench.peer import java_program, sides
from bench.peer.__main__ import wait_until_quiet
from bench.peer.turns import OURS, PEER, PEER_ON_ROCKSDB, Turn, figures, pairs
from bench.report import JSON_NAME, MARKDOWN_NAME, Report, write

ROOT = Path(__file__).parents[3]


def turn(side: str, number: int, rate: float, *, cores: float = 2.0, size: int = 256) -> Turn:
    """Return a turn of ten seconds, in which the consumer came 50 messages nearer."""
    counts = [(100.0, 1_000, 900), (110.0, 1_000 + int(rate * 10), 950 + int(rate * 10))]
    of_processes = {"producer": cores / 4, "broker": cores * 3 / 4}
    return Turn(side, size, number, rate, of_processes, counts, {"p50": 5.0})


def test_the_lock_names_every_jar_once_with_version_size_and_sha256() -> None:
    for name in java_program.JAR_SETS:
        jars = java_program.locked(name)
        artifacts = [jar.coordinates.rpartition(":")[0] for jar in jars]
        assert len(set(artifacts)) == len(artifacts) > 0
        for jar in jars:
            assert re.fullmatch("[0-9a-f]{64}", jar.sha256), jar
            assert jar.size_bytes > 0
            assert jar.coordinates.rpartition(":")[2][0].isdigit()


def test_the_lock_holds_what_is_wanted_and_nothing_that_is_excluded() -> None:
    wanted = java_program.wanted()
    for name in java_program.JAR_SETS:
        coordinates = {jar.coordinates for jar in java_program.locked(name)}
        assert set(wanted[name]["wanted"]) <= coordinates
        artifacts = {text.rpartition(":")[0] for text in coordinates}
        assert artifacts & set(wanted[name]["excluded"]) == set()


def test_name_server_broker_and_client_are_of_one_version() -> None:
    assert java_program.rocketmq_version() == "5.5.0"
    ours = [text.rpartition(":") for text in java_program.wanted()["rocketmq"]["wanted"]]
    assert {version for _, _, version in ours} == {"5.5.0"}


def test_processor_time_is_that_of_all_processes_for_one_transaction() -> None:
    assert turn(OURS, 1, 10_000.0, cores=2.0).processor_us == pytest.approx(200.0)


def test_a_row_says_how_far_the_consumer_was_behind() -> None:
    row = turn(PEER, 1, 5_000.0).row()
    assert row["not_consumed"] == {"first": 100, "last": 50}
    assert row["consumed_s"] == 5_005
    assert row["tx_s"] == 5_000


def test_a_round_counts_if_both_sides_did_their_turn() -> None:
    turns = [
        turn(OURS, 1, 9.0),
        turn(PEER, 1, 3.0),
        turn(PEER, 2, 3.0),
        turn(OURS, 3, 8.0),
        turn(PEER, 3, 4.0),
        turn(OURS, 2, 7.0, size=2_048),
    ]
    assert [(a.number, a.rate, b.rate) for a, b in pairs(turns, 256)] == [(1, 9, 3), (3, 8, 4)]
    assert pairs(turns, 2_048) == []
    assert figures(turns, 2_048, {}) == []


def test_a_ratio_is_the_median_of_the_rounds_not_the_ratio_of_the_medians() -> None:
    turns = [
        turn(OURS, 1, 20_000.0),
        turn(PEER, 1, 10_000.0),
        turn(OURS, 2, 30_000.0, cores=1.5),
        turn(PEER, 2, 10_000.0),
        turn(OURS, 3, 40_000.0),
        turn(PEER, 3, 40_000.0),
    ]

    rate, processor = figures(turns, 256, {"rounds": 3})

    assert (rate.value, list(rate.samples)) == (2.0, [2.0, 3.0, 1.0])
    assert (processor.value, list(processor.samples)) == (2.0, [2.0, 4.0, 1.0])
    assert rate.details["RocketMQ, tx/s by round"] == [10_000, 10_000, 40_000]


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(3.49, MISSED), (3.5, MET), (4.99, MET), (5.0, REACHED)]
)
def test_the_ratio_of_the_rates_is_judged(ratio: float, verdict: str) -> None:
    rate, _ = figures([turn(OURS, 1, ratio * 1_000), turn(PEER, 1, 1_000.0)], 256, {})
    assert rate.verdict == verdict


def test_rocketmq_on_rocksdb_stands_beside_the_ratio() -> None:
    turns = [turn(OURS, 1, 9_000.0), turn(PEER, 1, 3_000.0), turn(PEER_ON_ROCKSDB, 1, 2_000.0)]
    rate, _, on_rocksdb = figures(turns, 256, {})
    assert rate.value == 3.0
    assert (on_rocksdb.value, on_rocksdb.unit) == (2_000.0, "tx/s")


def test_no_folder_of_a_turn_has_a_space() -> None:
    names = [sides.folder_name(side, 256, 1) for side in (OURS, PEER, PEER_ON_ROCKSDB)]
    assert len(set(names)) == 3
    assert [name for name in names if " " in name] == []


def test_a_turn_waits_for_a_quiet_machine_and_says_so() -> None:
    loads = [3.0] * 14 + [0.5, 0.49]
    said: list[str] = []

    def sleep(_seconds: float) -> None:
        del loads[0]

    waited_s = wait_until_quiet(0.5, said.append, lambda: loads[0], sleep)

    assert waited_s == 75.0
    assert said == [
        "  waiting: the load is 3.00, a turn begins below 0.5",
        "  waiting: the load is 3.00, a turn begins below 0.5",
    ]
    assert wait_until_quiet(0.0, said.append, lambda: 9.0) == 0.0


def test_the_report_has_both_rows_of_each_round(tmp_path: Path) -> None:
    found = figures([turn(OURS, 1, 9_000.0), turn(PEER, 1, 3_000.0)], 256, {"rounds": 1})
    machine = {"cores": 2, "processor": "p", "memory_gib": 1, "system": "s", "load_before": 0}
    write(Report("peer", "today", "abc", machine, {}, {}, {}, {}, found, {}), tmp_path)
    text = (tmp_path / MARKDOWN_NAME).read_text("utf-8")
    assert "| sustained / RocketMQ, bodies of 256 B | 3 | ratio | 3.5 | 5 | missed |" in text
    details = json.loads((tmp_path / JSON_NAME).read_text("utf-8"))["figures"][0]["details"]
    assert details["round 1, ours"]["tx_s"] == 9_000
    assert details["round 1, rocketmq"]["tx_s"] == 3_000


def test_the_set_up_does_not_fetch_rocketmq() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    using = [line for line in makefile.splitlines() if line.startswith("\t") and "peer" in line]
    assert using == ["\t@$(PY) -m bench.peer $(PEER)"]
