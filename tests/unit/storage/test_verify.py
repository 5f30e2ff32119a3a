"""`verify` accepts what the rules decided, and names the row when one invariant is violated."""

from __future__ import annotations

import datetime as dt
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from storage.errors import NewerLakeError, NotALakeError
from storage.lake.epochs import Plan, Range
from storage.lake.lake import Lake
from storage.verify import run, state
from storage.verify.invariant import NAMED_MAX
from storage.verify.run import INVARIANTS, RECORDED, Report, verify
from tests.support.damage import WholeJob
from tests.support.decided_rows import decided_rows
from tests.support.histories import random_world
from tests.support.in_memory_job import QUEUES, TOPICS, InMemoryJob
from tests.support.lake_rows import LakeRows
from tests.support.mutation import LAST, Mutation, all_mutations, range_of, set_range
from tests.support.sound_lake import sound_rows

MUTATIONS = all_mutations()
# These invariants are about what all the others rest upon: their mutations stay alone.
LONELY = {"epochs_chained", "rows_are_committed", "lake_is_whole", "counts_add_up"}
SOCIABLE = [one for one in MUTATIONS if one.invariant not in LONELY]
# Mutations of one group must not touch each other's rows. Where two do: another number.
GROUP_COUNT = 23
GROUPS = [SOCIABLE[number::GROUP_COUNT] for number in range(GROUP_COUNT)]
ALL = (*INVARIANTS, *RECORDED)
STATE = {invariant.name for invariant in state.RECORDED}
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def violated(report: Report) -> dict[str, list[dict[str, object]]]:
    return {f.invariant.name: f.rows for f in report.findings if f.violations}


@pytest.fixture(scope="module")
def rows() -> LakeRows:
    return sound_rows()


@pytest.fixture(scope="module")
def base(rows: LakeRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "lake"
    rows.write(path)
    return path


def test_a_sound_lake_is_accepted_and_every_invariant_looks_at_rows(base: Path) -> None:
    report = verify(Lake(str(base)))
    assert violated(report) == {}
    assert report.is_sound
    assert [f.invariant.name for f in report.findings if f.checked == 0] == []
    n = report.numbers
    assert n["halves"] == n["committed"] + n["rolled_back"] + n["pending"] + n["unreadable"]
    assert (n["epochs"], n["discarded"], report.last_epoch) == (LAST, 4, LAST)


def test_the_sound_lake_has_every_kind_of_row(rows: LakeRows) -> None:
    tables = rows.tables
    seen = {f"{row['outcome']} {row['cause']}" for row in tables["outcomes"]}
    seen |= {row["reason"] for row in tables["conflicts"]}
    seen |= {row["action"] for row in tables["deliveries"]}
    seen |= {row["result"] for row in tables["admin"]}
    seen |= {row["reason"] for messages in rows.messages.values() for row in messages}
    assert seen >= {
        "COMMITTED operation",
        "COMMITTED operator",
        "COMMITTED late_end",
        "ROLLED_BACK operation",
        "ROLLED_BACK check_answer",
        "ROLLED_BACK duplicate_in_set",
        "DISCARDED check_max",
        "DISCARDED expired",
        "conflicting_end",
        "duplicate_end",
        "unreadable_half",
        "unreadable_operation",
        "wrong_producer_group",
        "bad_signature",
        "wrong_transaction_id",
        "orphan_expired",
        "no_transaction_id",
        "after_immunity",
        "end_after_discard",
        "DELIVERED",
        "UNDELIVERABLE",
        "CANCELLED",
        "rearmed",
        "resumed",
        "resent",
        "not_pending",
        "cancelled",
        "grown",
        "accepted",
        "noted",
        "not_delayed",
        "queue_out_of_range",
        "topic_not_allowed",
        "group_topics_max",
        "check_max",
        "expired",
    }
    assert {row["arm"] for row in tables["outcomes"]} == {0, 1}
    assert {row["acknowledged"] for row in tables["checks"]} == {True, False}
    assert tables["pending"] and tables["waiting"]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].name)
def test_mutations_violate_their_invariants_and_no_other_and_their_rows_are_named(
    group: list[Mutation], rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    require_are_named(group, rows, base, tmp_path)


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.soak] if one in SOCIABLE else [])
        for one in MUTATIONS
    ],
)
def test_a_mutation_violates_its_invariant_alone_and_its_row_is_named(
    mutation: Mutation, rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    require_are_named([mutation], rows, base, tmp_path)


# The invariants are the same text: on many rows DuckDB plans it as it likes.
@pytest.mark.usefixtures("as_many_rows")
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, id=group[0].name, marks=[pytest.mark.soak] if number % 7 else [])
        for number, group in enumerate(GROUPS)
    ],
)
def test_mutations_among_many_rows_are_named_as_well(
    group: list[Mutation], rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    require_are_named(group, rows, base, tmp_path)


@pytest.fixture
def as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lake be checked as one with many rows is."""
    monkeypatch.setattr(run, "_FEW_ROWS", 0)


@pytest.mark.usefixtures("as_many_rows")
def test_the_sound_lake_is_accepted_as_one_with_many_rows(base: Path) -> None:
    report = verify(Lake(str(base)))
    assert violated(report) == {}
    assert [f.invariant.name for f in report.findings if f.checked == 0] == []


def require_are_named(
    mutations: list[Mutation], rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    mutated = rows.copy()
    for mutation in mutations:
        mutation.change(mutated)

    found = violated(verify(mutated.write_changed(tmp_path / "lake", base, rows)))
    expected = {mutation.invariant for mutation in mutations}
    assert len(expected) == len(mutations), "one of two would hide the other"
    # What was recorded of the state contradicts a lake in which something else was changed, too.
    beside = STATE - expected
    assert set(found) - beside == expected, found

    for mutation in mutations:
        violations = found[mutation.invariant]
        assert [row for row in violations if mutation.named.items() <= row.items()], mutation.name


def test_every_invariant_has_a_mutation_and_a_name_of_its_own() -> None:
    names = [invariant.name for invariant in ALL]
    assert len(names) == len(set(names))
    assert {mutation.invariant for mutation in MUTATIONS} == set(names)
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_the_document_lists_the_invariants() -> None:
    text = (Path(__file__).parents[3] / "docs" / "verify.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert listed == [(invariant.name, invariant.statement) for invariant in ALL]


@pytest.mark.parametrize("seed", range(4))
def test_what_the_rules_decide_for_random_histories_is_accepted(seed: int, tmp_path: Path) -> None:
    lake = decided_rows(random_world(seed, 60)).write(tmp_path / "lake")
    assert violated(verify(lake)) == {}, seed


def test_an_epoch_that_is_planned_and_not_committed_is_ignored(
    rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    planned = rows.copy()
    for epoch in (11, 12):
        planned.take("epochs", epoch=epoch, state="committed")
    planned.take("epochs", epoch=12, state="planned")
    for table in planned.tables:
        planned.tables[table] = [r for r in planned.tables[table] if r.get("epoch") != 12]
    for topic, messages in planned.messages.items():
        planned.messages[topic] = [row for row in messages if row["epoch"] != 12]
    planned.find("conflicts", epoch=11)["reason"] = "wrong, and only early"
    report = verify(planned.write_changed(tmp_path / "lake", base, rows))
    assert violated(report) == {}
    assert report.last_epoch == 10
    assert report.ignored == {"op": 1, "admin": 4, "conflicts": 1, "checks": 1, "pending": 2}


def test_an_offset_without_a_record_is_a_legal_gap(
    rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    gap = rows.copy()  # two Kafka transaction markers
    found = range_of(gap, LAST, "ops", 0)
    ends = {"to_offset": found["to_offset"] + 2, "end_offset": found["end_offset"] + 2}
    set_range(gap, LAST, {**found, **ends})
    assert violated(verify(gap.write_changed(tmp_path / "lake", base, rows))) == {}


def test_c_may_be_when_kafka_was_asked_before_the_batch_was_cut(
    rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    asked = rows.copy()
    found, plan = range_of(asked, LAST, "ops", 0), asked.plan(LAST)
    # At epoch_at Kafka had one record more than the batch brings; a moment before it had not.
    ends = {"end_offset": found["to_offset"] + 1, "asked_end_offset": found["to_offset"]}
    set_range(asked, LAST, {**found, **ends})
    plan["asked_at"] = plan["epoch_at"] - dt.timedelta(milliseconds=1)
    lake = asked.write_changed(tmp_path / "ahead", base, rows)
    assert list(violated(verify(lake))) == ["c_is_known"]
    plan["known_at"] = [(0, plan["asked_at"]), *plan["known_at"][1:]]
    lake = asked.write_changed(tmp_path / "lake", base, rows)
    assert violated(verify(lake)) == {}


class WideningJob(InMemoryJob):
    """A job whose half topic lacks a partition of the op topic up to an epoch.

    `late_ms`: `halves_known_at` of that queue is so long after the last epoch without it.
    """

    queue, last, late_ms = QUEUES["op"], 2, 0

    def _plan(self, known: bool, ops_ahead: int) -> Plan:
        plan = super()._plan(known, ops_ahead)
        ranges = [*plan.ranges, Range(TOPICS["op"], self.queue, 0, 0, 0)]
        if self.epoch <= self.last:
            self.known_ms = plan.epoch_at
        else:  # halves came behind the cut of this micro-batch
            ranges.append(Range(TOPICS["half"], self.queue, 0, 0, 5))
        return replace(
            plan,
            ranges=tuple(ranges),
            known_at={**plan.known_at, self.queue: plan.epoch_at},
            halves_known_at={
                **plan.halves_known_at,
                self.queue: self.known_ms + (self.late_ms if self.epoch > self.last else 0),
            },
        )


@pytest.mark.parametrize(("late_ms", "expected"), [(0, []), (1, ["c_is_known"])])
def test_halves_are_known_until_the_half_topic_gets_a_partition_of_the_op_topic(
    tmp_path: Path, late_ms: int, expected: list[str]
) -> None:
    job = WideningJob(tmp_path / "lake")
    job.late_ms = late_ms
    for _ in range(job.last + 1):
        job.run()
    assert list(violated(verify(job.lake))) == expected


def test_a_half_waits_as_long_as_attempts_that_nobody_acknowledged_back_off(
    tmp_path: Path,
) -> None:
    job = WholeJob(tmp_path / "lake", check_max=15)
    interval_ms = job.parameters.check_interval_ms
    half = job.half()
    job.run()
    job.run(job.parameters.transaction_timeout_ms + 1)
    for _ in range(2):
        job.run(interval_ms, acknowledged=False)

    # The next step comes twice as long after the attempt, also if it is a discard now.
    job.parameters = replace(job.parameters, check_max=1)
    job.run(interval_ms)
    assert job.lake.read("outcomes").num_rows == 0
    assert violated(verify(job.lake)) == {}

    job.run(interval_ms)
    (outcome,) = job.lake.read("outcomes").to_pylist()
    assert (outcome["queue_offset"], outcome["cause"]) == (half, "check_max")
    assert violated(verify(job.lake)) == {}


def test_only_the_asked_epochs_are_looked_at(rows: LakeRows, base: Path, tmp_path: Path) -> None:
    mutated = rows.copy()
    mutated.find("outcomes", transaction_id="commit")["cause"] = "operator"
    lake = mutated.write_changed(tmp_path / "lake", base, rows)
    assert list(violated(verify(lake, 1, 5))) == ["ends_have_their_operation"]
    assert verify(lake, 1, 5).last_epoch == 5
    assert violated(verify(lake, 2, 12)) == {}
    assert violated(verify(Lake(str(base)), 3, 7)) == {}


def test_a_lake_without_an_epoch_is_sound(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    lake.create(NOW)
    report = verify(lake)
    assert report.is_sound
    assert report.last_epoch == 0


def test_rows_are_named_up_to_a_limit_and_counted_beyond_it(
    rows: LakeRows, base: Path, tmp_path: Path
) -> None:
    mutated = rows.copy()
    for row in mutated.tables["outcomes"]:
        row["decided_at"] += 1
    report = verify(mutated.write_changed(tmp_path / "lake", base, rows))
    (finding,) = [f for f in report.findings if f.violations]
    assert (finding.violations, len(finding.rows)) == (len(rows.tables["outcomes"]), NAMED_MAX)


@pytest.mark.parametrize("name", ["lake of *", "a lake"])
def test_any_path_of_a_lake_can_be_read(name: str, base: Path, tmp_path: Path) -> None:
    lake = sound_rows().write(tmp_path / name)
    assert verify(lake).numbers == verify(Lake(str(base))).numbers
    assert verify(lake).is_sound


def test_a_folder_without_a_lake_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotALakeError, match="is not a lake"):
        verify(Lake(str(tmp_path)))


def test_a_table_that_cannot_be_read_is_a_finding_and_the_others_are_looked_at(
    base: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(base, broken)
    next((broken / "outcomes").glob("*.parquet")).unlink()
    report = verify(Lake(str(broken)))
    (row, *_) = violated(report)["lake_is_whole"]
    assert row["table"] == "outcomes"
    assert "has lost its file" in str(row["problem"])
    assert report.numbers["halves"] > 0
    shutil.rmtree(broken / "outcomes")
    found = violated(verify(Lake(str(broken))))
    assert {(row["table"], row["problem"]) for row in found["lake_is_whole"]} >= {
        ("outcomes", "is missing; its version was 0 when epoch 12 committed"),
    }


def test_a_newer_lake_is_refused(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "newer")
    table = DeltaTable(str(tmp_path / "newer" / "lake"))
    row = table.to_pyarrow_table().to_pylist()[0] | {"format_version": 99}
    schema = Lake.schema("lake")
    write_deltalake(table, pa.Table.from_pylist([row], schema=schema), mode="overwrite")
    with pytest.raises(NewerLakeError, match="format 99"):
        verify(Lake(str(tmp_path / "newer")))


def test_a_topic_without_its_table_is_a_violation(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "topics" / "3")
    found = violated(verify(Lake(str(tmp_path / "lake"))))
    assert {"topic": "parts", "problem": "there is no such table"}.items() <= (
        found["catalog_grows"][0].items()
    )


@pytest.mark.usefixtures("as_many_rows")
def test_no_join_looks_at_every_pair_of_rows(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[str] = []

    def explain(connection: duckdb.DuckDBPyConnection, text: str) -> None:
        plans.extend(row[1] for row in connection.execute(f"EXPLAIN {text}").fetchall())

    real = run._check

    def check(connection: duckdb.DuckDBPyConnection, invariant: run.Invariant, *epochs: int):  # type: ignore[no-untyped-def]
        explain(connection, invariant.rows)
        return real(connection, invariant, *epochs)

    monkeypatch.setattr(run, "_check", check)
    verify(Lake(str(base)))
    assert len(plans) == len(ALL)
    assert [plan for plan in plans if re.search("BLOCKWISE_NL_JOIN", plan)] == []


def test_verify_needs_neither_the_checker_nor_spark() -> None:
    text = (
        "import sys, storage.verify.run; "
        "print([n for n in ('checker', 'pyspark', 'py4j') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
