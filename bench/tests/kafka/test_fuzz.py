"""Hostile records, a few thousand: each is one row; `python -m bench.fuzz` writes many more."""

from __future__ import annotations

from pathlib import Path

from bench.fuzz import fuzz
from pipelines.local_broker.broker import Broker


def test_hostile_records_are_one_row_each_and_stop_nothing(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "temp").mkdir()

    report = fuzz(broker, tmp_path / "own", tmp_path / "temp", 4_000, 7)
    of_half = {name.split()[1] for name in report["rows"] if name.startswith("half ")}

    assert {
        "bad_producer_group",
        "bad_transaction_id",
        "bad_real_topic",
        "bad_set",
        "newer_version",
        "too_large",
    } <= of_half
    assert sum(report["rows"][kind] for kind in ("half", "op", "schedule")) > 3_200
