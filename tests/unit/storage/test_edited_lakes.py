"""A line of a table's log that somebody has edited: a sentence, or an answer; nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import LakeError
from tests.support.crossing import crossing
from tests.support.damage import (
    ORDERS,
    TRANSACTION,
    consume,
    log_entries,
    prints,
    start,
    txlake,
)
from txlake import LakeError as ConsumersLakeError

pytestmark = pytest.mark.usefixtures("one_look")
Add = dict[str, Any]
MESSAGES = 6  # of the topic, as a consumer counts them


def _path(path: str) -> Callable[[Add], object]:
    return lambda add: add.update(path=path)


def _stats(**changes: Any) -> Callable[[Add], object]:
    return lambda add: add.update(stats=json.dumps({**json.loads(add["stats"]), **changes}))


# What is changed in the entry that adds a file, and whether each tool must refuse. Statistics that
# delta-rs cannot use are passed over: the file's own count is there.
EDITS: dict[str, tuple[Callable[[Add], object], bool]] = {
    "another folder's file": (_path("../other/part.parquet"), True),
    "a file of the system": (_path("/etc/passwd"), True),
    "a URL": (_path("http://127.0.0.1:1/x.parquet"), True),
    "an empty path": (_path(""), True),
    "a smaller size": (lambda add: add.update(size=1), True),
    "more rows": (_stats(numRecords=10**15), False),
    "no rows": (_stats(numRecords=0), True),
    "rows in words": (_stats(numRecords="many"), False),
    "stats that are no JSON": (lambda add: add.update(stats="{"), False),
    "no stats": (lambda add: add.pop("stats"), False),
    "a size in words": (lambda add: add.update(size="large"), True),
    "no data change": (lambda add: add.update(dataChange=False), False),
}


def edited(table: Path, change: Callable[[Add], object]) -> None:
    """Change the newest line that adds a file."""
    for entry in reversed(log_entries(table)):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        adds = [line["add"] for line in lines if "add" in line]
        if adds:
            change(adds[-1])
            entry.write_text("\n".join(map(json.dumps, lines)))
            return
    raise AssertionError(f"nothing was added to {table}")


@pytest.mark.parametrize(("table", "name"), crossing(["half", ORDERS], tuple(EDITS)))
def test_an_edited_log_is_named_or_answered_and_nothing_is_written(
    table: str, name: str, lake_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    change, is_named = EDITS[name]
    edited(lake_copy / table, change)
    before = prints(lake_copy)
    lake = ("--lake", str(lake_copy))
    refused = {}
    for words in (("tx", "explain", TRANSACTION), ("status",), ("verify",), ("replay", "--verify")):
        code, said = txlake(*words, *lake)  # it fails for any error that is not a sentence
        refused[words[0]] = code in (1, 3) and table in said
        assert "Traceback" not in said
    try:
        start(lake_copy)
        refused["run"] = False
    except LakeError as error:
        refused["run"] = table in str(error) and "\n" not in str(error)
    assert prints(lake_copy) == before
    if table == ORDERS:
        del refused["status"]  # it does not read the table
        try:
            refused["consumer"] = consume(lake_copy) == MESSAGES  # an answer that is right
        except ConsumersLakeError as error:
            refused["consumer"] = table in str(error)
    assert "".join(capfd.readouterr()) == ""
    if is_named:
        assert refused == dict.fromkeys(refused, True), refused
