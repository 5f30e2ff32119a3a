"""A lake that the first format's code made: who can read it, and what is found in it.

`format_1_refused_commit.tar.gz` was made by the last commit of that format. A set of three was
discarded with two members landed; a COMMIT that names both was refused, as late ends were; the job
was started anew, and its restored state had the COMMIT waiting again. A RESUME and the third member
later the set was committed, by the operation that is a conflict.

`format_4.tar.xz` and `format_4_floor.tar.xz` are from a real job of the last commit of format 4:
sets, duplicates, discards, re-arms, operations that wait, delays, conflicts, and commands
whose targets have leading zeros. The second one has deleted what stood below its floor.
"""

from __future__ import annotations

import copy
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from checker.rules import timing
from pipelines.replay import rebuild, verification
from storage.errors import OlderLakeError
from storage.lake.lake import Lake
from storage.schemas import TABLES
from storage.verify.run import verify
from tests.support.damage import as_format, refusal, txlake
from tests.support.decided_rows import decided_rows
from tests.support.histories import random_world
from tests.support.history import SILENT
from tests.support.sound_lake import HISTORY
from txlake import Consumer

# What a plan of rule version 3 has in place of the parameters that later versions brought.
OF_RULE_VERSION_3 = {
    "group_topics_max": 1_000_000,
    "ages_from_known_at": False,
    "deliver_at_goes_first": False,
    "due_at_max": 253_402_300_799_999,
    "require_transaction_id": False,
    "reject_after_immunity": False,
}
LAKES = Path(__file__).parents[2] / "support" / "lakes"
ARCHIVE = LAKES / "format_1_refused_commit.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Lake:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return Lake(str(tmp_path / "format_1_refused_commit"))


def test_verify_finds_the_commit_that_had_been_refused(old: Lake) -> None:
    found = {f.invariant.name: f.rows for f in verify(old).findings if f.violations}
    (row,) = found.pop("ends_have_their_operation")
    assert (row["queue_id"], row["queue_offset"], row["op_queue_offset"]) == (0, 0, 0)
    assert row["problem"] == "the operation was turned down for it in epoch 5, for ever"
    assert found == {}


def test_an_older_lake_is_refused_with_the_way_over(old: Lake) -> None:
    with pytest.raises(OlderLakeError, match=r"has format 1, .* `txlake replay --into NEW"):
        old.lake_id()


def test_its_history_decided_again_leaves_the_set_discarded_and_pending(
    old: Lake, tmp_path: Path
) -> None:
    rebuild(old, str(tmp_path / "new"))
    new = Lake(str(tmp_path / "new"))
    assert {f.invariant.name: f.rows for f in verify(new).findings if f.violations} == {}
    ends = {(r["queue_offset"], r["outcome"]) for r in new.read("outcomes").to_pylist()}
    assert ends == {(0, "DISCARDED"), (1, "DISCARDED"), (3, "COMMITTED")}
    assert {r["reason"] for r in new.read("conflicts").to_pylist()} == {"end_after_discard"}


def decided_alike(world: dict[str, Any]) -> dict[str, Any]:
    """Return a world that rules before version 5 decide as today's do.

    Each operation names one half, no set has one half, and nothing is delayed by a span.
    """
    world = copy.deepcopy(world)
    for epoch in world["epochs"]:
        changed = epoch.get("parameters", {})
        for name in changed.keys() & OF_RULE_VERSION_3.keys():
            del changed[name]
        for row in (*epoch["halves"], *epoch["schedules"]):
            row["delay_ms"] = None
        for half in epoch["halves"]:
            if half["tran_size"] == 1:
                half |= {"tran_size": None, "tran_seq": None}
        for operation in epoch["operations"]:
            for name in ("half_offsets", "transaction_ids"):
                operation[name] = operation[name] and operation[name][:1]
    return world


def before_format_3(path: Path, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return what the last version before format 3, of rule version 2, would have left."""
    world = decided_alike(world)
    world["parameters"] |= OF_RULE_VERSION_3
    for epoch in world["epochs"]:
        epoch.get("parameters", {}).pop("group_topics_max", None)
        for operation in epoch["operations"]:
            operation["is_signed"] = None
    with monkeypatch.context() as patch:
        patch.setattr(timing, "_DOUBLINGS_MAX", 0)  # attempts did not back off
        rows = decided_rows(world)
    for row in rows.tables["epochs"]:
        row["rule_version"] = 2
    rows.keep_books()
    rows.write(path)
    as_format(path, 2)
    return Lake(str(path))


@pytest.fixture
def unsigned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    return before_format_3(tmp_path / "format_2", random_world(1, 20), monkeypatch)


def test_a_lake_without_signatures_is_refused_with_the_way_over(unsigned: Lake) -> None:
    with pytest.raises(OlderLakeError, match=r"has format 2, .* `txlake replay --into NEW"):
        unsigned.lake_id()


def test_attempts_of_rule_version_2_did_not_back_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half of the group without a check topic is asked about at each interval."""
    lake = before_format_3(tmp_path / "old", HISTORY, monkeypatch)
    asked = lake.read("checks").filter(pc.field("producer_group") == SILENT)["epoch"]
    assert sorted(asked.to_pylist()) == [2, 4, 6, 8]
    report = verify(lake)
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}


def test_a_lake_without_signatures_is_verified_and_rebuilt_row_for_row(
    unsigned: Lake, tmp_path: Path
) -> None:
    report = verify(unsigned)
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    rebuild(unsigned, str(tmp_path / "new"))
    new = Lake(str(tmp_path / "new"))
    for table in ("outcomes", "waiting", "conflicts"):
        names = [field.name for field in unsigned.handle(table).schema().fields]
        rows = [sorted(lake.read(table, names).to_pylist(), key=repr) for lake in (unsigned, new)]
        assert rows[0] == rows[1] != [], table
    assert set(new.read("op")["is_signed"].to_pylist()) == {None}


@pytest.fixture
def groupless(tmp_path: Path) -> Lake:
    """Return what the last version before format 4, of rule version 3, would have left."""
    world = decided_alike(random_world(2, 20))
    world["parameters"] |= OF_RULE_VERSION_3
    rows = decided_rows(world)
    for row in rows.tables["epochs"]:
        row["rule_version"] = 3
        row["parameters"] = [
            (name, value)
            for name, value in row["parameters"] or []
            if name not in OF_RULE_VERSION_3
        ]
    rows.keep_books()
    rows.write(tmp_path / "format_3")
    as_format(tmp_path / "format_3", 3)
    return Lake(str(tmp_path / "format_3"))


def test_a_lake_without_makers_of_topics_is_refused_verified_and_rebuilt(
    groupless: Lake, tmp_path: Path
) -> None:
    with pytest.raises(OlderLakeError, match=r"has format 3, .* `txlake replay --into NEW"):
        groupless.lake_id()
    report = verify(groupless)
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    rebuild(groupless, str(tmp_path / "new"))
    new = Lake(str(tmp_path / "new"))
    assert {f.invariant.name: f.rows for f in verify(new).findings if f.violations} == {}
    assert any(new.read("catalog")["producer_group"].to_pylist())
    for table in ("outcomes", "deliveries", "conflicts"):
        rows = [sorted(lake.read(table).to_pylist(), key=repr) for lake in (groupless, new)]
        assert rows[0] == rows[1] != [], table


@pytest.fixture(params=["format_4", "format_4_floor"])
def ageless(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Return a lake in which halves age from `stored_at`."""
    with tarfile.open(LAKES / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return Lake(str(tmp_path / request.param))


def test_a_lake_of_the_last_format_is_sound_and_refused_with_the_way_over(ageless: Lake) -> None:
    assert {f.invariant.name: f.rows for f in verify(ageless).findings if f.violations} == {}
    sentence = (
        "has format 4, this txlake writes format 5: `txlake replay --into NEW --lake "
        f"{ageless.path}`"
    )
    with pytest.raises(OlderLakeError, match="has format 4"):
        ageless.check()
    for words in (("status",), ("tx", "list"), ("replay", "--verify")):
        assert sentence in refusal(*words, "--lake", ageless.path)


def test_a_lake_of_the_last_format_is_carried_over_row_for_row(
    ageless: Lake, tmp_path: Path
) -> None:
    code, said = txlake("replay", "--into", str(tmp_path / "new"), "--lake", ageless.path)
    assert code == 0, said
    new = Lake(str(tmp_path / "new"))
    assert {f.invariant.name: f.rows for f in verify(new).findings if f.violations} == {}
    assert verification.verify(new).is_equal
    topics = [f"topics/{number}" for number in new.read("catalog")["table_id"].to_pylist()]
    for table in (*TABLES.keys() - {"lake", "epochs"}, *dict.fromkeys(topics)):
        names = [field.name for field in ageless.handle(table).schema().fields]
        if table == "waiting":  # it says by the sets' names now for which the operation is decided
            names.remove("refused_units")
        rows = [sorted(lake.read(table, names).to_pylist(), key=repr) for lake in (ageless, new)]
        assert rows[0] == rows[1], table
    pending = new.read("pending")
    assert pending["age_from_at"].equals(pending["stored_at"])
    assert pending.num_rows > 0


def test_a_consumer_reads_a_lake_of_the_last_format_as_any_other(ageless: Lake) -> None:
    catalog = {row["topic"]: row["table_id"] for row in ageless.read("catalog").to_pylist()}
    stored = ageless.read(f"topics/{catalog['orders']}").num_rows
    with Consumer(ageless.path, "readers", ["orders"]) as consumer:
        assert len(consumer.poll(0.0)) == stored > 0
        consumer.commit()
