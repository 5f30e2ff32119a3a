"""Records that are decoded in two ways: as tasks land them, and by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.wire.decode import decode_rows
from tests.support.kafka_records import (
    LIMITS,
    Record,
    as_read,
    landed,
)

Decode = Callable[..., list[dict[str, Any]]]


@pytest.fixture(params=["by tasks", "by itself"])
def decoded(request: pytest.FixtureRequest, tmp_path: Path) -> Decode:
    """Return one of the two ways. Output: RECORDS as plain rows; maps as lists of pairs."""

    def run(*records: Record) -> list[dict[str, Any]]:
        read = as_read(records)
        if request.param == "by tasks":
            return landed(read, tmp_path / "lake")
        rows: list[dict[str, Any]] = decode_rows(read, LIMITS).to_pylist()
        return rows

    return run
