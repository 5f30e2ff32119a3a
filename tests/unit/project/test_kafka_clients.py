"""Clients of Kafka that tests make: one that outlives its broker writes nothing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
MAKER = "support/kafka_admin.py"


def test_admin_clients_are_made_in_one_place_where_they_log_nothing() -> None:
    made = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and re.search(r"\bAdminClient\(", path.read_text("utf-8"))
    ]
    assert made == [MAKER]
    assert '"log_level": 0' in (TESTS / MAKER).read_text("utf-8")
