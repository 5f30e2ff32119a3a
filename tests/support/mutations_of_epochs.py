"""Violations of what is said of epochs, their ranges, and what they landed."""

from __future__ import annotations

import json

from storage.rows import instant
from tests.support.lake_rows import LakeRows
from tests.support.mutation import ORDERS, at_ms, move, range_of, set_range, violates


@violates("epochs_gapless", epoch=5, problem="committed 2 times")
def committed_twice(rows: LakeRows) -> None:
    rows.tables["epochs"].append(dict(rows.commit(5)))


@violates("epochs_gapless", epoch=5, problem="never committed")
def skipped(rows: LakeRows) -> None:
    rows.take("epochs", epoch=5, state="committed")


@violates("epochs_gapless", epoch=5)
def another_t_at_commit(rows: LakeRows) -> None:
    rows.commit(5)["epoch_at"] = rows.plan(6)["epoch_at"]


@violates("time_monotonic", epoch=7, what="epoch_at")
def t_goes_back(rows: LakeRows) -> None:
    back = instant(at_ms(rows, 6) - 1)
    for row in (rows.plan(7), rows.commit(7)):
        row["epoch_at"] = back
    for name in ("known_at", "halves_known_at"):
        rows.plan(7)[name] = [(queue, back) for queue, _ in rows.plan(7)[name]]


@violates("time_monotonic", epoch=7, what="known_at", queue_id=0)
def c_goes_back(rows: LakeRows) -> None:
    rows.plan(7)["known_at"] = [(0, rows.plan(5)["epoch_at"]), rows.plan(7)["known_at"][1]]


@violates("time_monotonic", epoch=8, what="halves_known_at", queue_id=1)
def c_is_forgotten(rows: LakeRows) -> None:
    rows.plan(7)["halves_known_at"] = rows.plan(7)["halves_known_at"][:1]


@violates("c_is_known", epoch=12, what="op", queue_id=0)
def c_ahead_of_what_was_landed(rows: LakeRows) -> None:
    found = range_of(rows, 12, "ops", 0)
    set_range(rows, 12, {**found, "end_offset": found["end_offset"] + 1})


@violates("c_is_known", epoch=12, what="op", queue_id=0)
def c_ahead_of_what_was_asked_for(rows: LakeRows) -> None:
    """What Kafka said before the batch was cut counts only where it was landed."""
    found = range_of(rows, 12, "ops", 0)
    ends = dict.fromkeys(("end_offset", "asked_end_offset"), found["end_offset"] + 1)
    set_range(rows, 12, {**found, **ends})
    rows.plan(12)["asked_at"] = rows.plan(12)["epoch_at"]


@violates("ranges_adjoin", epoch=12, topic="ops", partition=0)
def range_overlaps(rows: LakeRows) -> None:
    found = range_of(rows, 12, "ops", 0)
    set_range(rows, 12, {**found, "from_offset": found["from_offset"] - 1})


@violates(
    "ranges_adjoin", epoch=11, topic="schedules", partition=0, problem="not in the epoch after"
)
def range_is_forgotten(rows: LakeRows) -> None:
    rows.plan(12)["ranges"] = [r for r in rows.plan(12)["ranges"] if r["topic"] != "schedules"]


@violates("losses_are_accepted", epoch=12, first_offset=12, problem="the epoch ends before them")
def more_is_passed_than_is_landed(rows: LakeRows) -> None:
    _set_loss(rows, last=15)


@violates("losses_are_accepted", problem="no command at offset 13 accepts that")
def nobody_has_accepted_the_loss(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=13)["target"] = "lost:half:1:12-12"


@violates("losses_are_accepted", epoch=12, first_offset=11, problem="there are rows")
def lost_offsets_hold_rows(rows: LakeRows) -> None:
    rows.find("admin", queue_offset=13)["target"] = "lost:half:1:11-13"
    _set_loss(rows, first=11)


def _set_loss(rows: LakeRows, **values: int) -> None:
    """Changes the loss that epoch 12 passes."""
    parameters = dict(rows.plan(12)["parameters"])
    (loss,) = json.loads(parameters["losses"])
    parameters["losses"] = json.dumps([{**loss, **values}])
    rows.plan(12)["parameters"] = sorted(parameters.items())


@violates("one_log", epoch=5, what="halves")
def topic_was_made_again(rows: LakeRows) -> None:
    ids = dict(rows.plan(5)["topic_ids"])
    rows.plan(5)["topic_ids"] = sorted({**ids, "halves": "another"}.items())


@violates("offsets_once", table="half", queue_id=0, queue_offset=14)
def half_landed_twice(rows: LakeRows) -> None:
    rows.tables["half"].append(dict(rows.find("half", transaction_id="young")))
    rows.keep_books()


@violates("offsets_once", table="op", queue_id=0, queue_offset=3)
def operation_landed_twice(rows: LakeRows) -> None:
    rows.tables["op"].append({**rows.find("op", queue_id=0, queue_offset=3), "epoch": 1})
    rows.keep_books()


@violates("offsets_once", table="schedule", queue_id=2, queue_offset=0)
def schedule_landed_twice(rows: LakeRows) -> None:
    rows.tables["schedule"].append(dict(rows.find("schedule", queue_id=2, queue_offset=0)))
    rows.keep_books()


@violates("rows_in_ranges", table="op", queue_id=0, queue_offset=100, epoch=12)
def row_outside_its_range(rows: LakeRows) -> None:
    bad = rows.find("op", error="bad_offsets")
    conflict = {**rows.find("conflicts", reason="unreadable_operation"), "op_queue_offset": 100}
    move(rows, conflict, 12)
    rows.tables["op"].append({**bad, "queue_offset": 100, "epoch": 12})
    rows.tables["conflicts"].append(conflict)
    rows.keep_books()


@violates("counts_add_up", epoch=1, counted="outcomes")
def count_is_wrong(rows: LakeRows) -> None:
    counts = dict(rows.commit(1)["counts"])
    rows.commit(1)["counts"] = sorted({**counts, "outcomes": counts["outcomes"] + 1}.items())


@violates("counts_add_up", epoch=2, counted="due")
def more_asked_than_due(rows: LakeRows) -> None:
    rows.commit(2)["counts"] = sorted({**dict(rows.commit(2)["counts"]), "due": 1}.items())


@violates("rows_are_planned", table="conflicts", epoch=99)
def row_of_no_epoch(rows: LakeRows) -> None:
    rows.tables["conflicts"].append({**rows.tables["conflicts"][0], "epoch": 99})


@violates("rows_have_their_t", table="outcomes", queue_id=0, offset=0)
def outcome_at_another_t(rows: LakeRows) -> None:
    rows.find("outcomes", transaction_id="commit")["decided_at"] += 1


@violates("rows_have_their_t", table="messages", queue_id=0, offset=1)
def message_without_t(rows: LakeRows) -> None:
    rows.find(ORDERS, transaction_id="commit")["stored_at"] = None


@violates("epochs_chained", epoch=5, state="planned")
def planned_row_is_edited(rows: LakeRows) -> None:
    rows.plan(5)["owner"] = "somebody else"
    rows.is_sealed = True


@violates("epochs_chained", epoch=9, state="committed")
def step_of_a_committed_row_is_edited(rows: LakeRows) -> None:
    rows.commit(9)["step_ms"] = [("decide", 1)]
    rows.is_sealed = True


@violates("rows_are_committed", epoch=11, table="checks")
def rows_of_a_table_are_miscounted(rows: LakeRows) -> None:
    (entry,) = [at for at in rows.commit(11)["tables"] if at["table"] == "checks"]
    entry["rows"] += 1
    rows.chain()
    rows.is_sealed = True


@violates("rows_are_committed", epoch=11, table="checks")
def table_is_not_named_by_its_epoch(rows: LakeRows) -> None:
    commit = rows.commit(11)
    commit["tables"] = [at for at in commit["tables"] if at["table"] != "checks"]
    rows.chain()
    rows.is_sealed = True


@violates(
    "lake_is_whole",
    table="conflicts",
    problem="is at version 1, and was at 9 when epoch 12 committed",
)
def table_is_behind(rows: LakeRows) -> None:
    (entry,) = [at for at in rows.commit(12)["tables"] if at["table"] == "conflicts"]
    entry["version"] = 9
    rows.chain()
    rows.is_sealed = True
