"""Violations of what is said of checks, discards, snapshots and consumers."""

from __future__ import annotations

from tests.lake_rows import LakeRows
from tests.mutation import COPIES, move, set_parameter, violates


@violates("checks_in_sequence", queue_id=0, queue_offset=14, check_times=2)
def check_is_left_out(rows: LakeRows) -> None:
    rows.find("checks", queue_offset=14).update(check_times=2, check_id="0-14-0-2")


@violates("checks_in_sequence", queue_id=0, queue_offset=9, check_times=2)
def too_many_checks(rows: LakeRows) -> None:
    set_parameter(rows, 4, "check_max", 1)


@violates("checks_in_sequence", queue_id=0, queue_offset=14, check_times=1)
def wrong_check_id(rows: LakeRows) -> None:
    rows.find("checks", queue_offset=14)["check_id"] = "0-14-0-7"


@violates("checks_spaced", queue_id=0, queue_offset=2, check_times=1)
def asked_during_immunity(rows: LakeRows) -> None:
    set_parameter(rows, 2, "transaction_timeout_ms", 1_500)


@violates("checks_spaced", queue_id=0, queue_offset=2, check_times=2)
def asked_again_too_soon(rows: LakeRows) -> None:
    set_parameter(rows, 4, "check_interval_ms", 2_001)


@violates("checks_before_end", queue_id=0, queue_offset=0, epoch=4)
def asked_after_the_end(rows: LakeRows) -> None:
    check = {**rows.find("checks", queue_offset=9, epoch=4), "queue_offset": 0}
    rows.tables["checks"].append({**check, "check_times": 1, "check_id": "0-0-0-1"})
    rows.commit(4)["counts"] = [("due", 9)]
    rows.keep_books()


@violates("checks_before_end", queue_id=0, queue_offset=9, epoch=7)
def asked_after_the_discard(rows: LakeRows) -> None:
    check = rows.find("checks", queue_offset=9, epoch=4)
    again = {**check, "acknowledged": False, "check_times": 3, "check_id": "0-9-0-3"}
    move(rows, again, 7)
    rows.tables["checks"].append(again)
    rows.commit(7)["counts"] = [("due", 9)]
    set_parameter(rows, 7, "check_max", 9)
    rows.keep_books()


@violates("checks_before_end", queue_id=0, queue_offset=14, epoch=11)
def another_group_is_asked(rows: LakeRows) -> None:
    rows.find("checks", queue_offset=14)["producer_group"] = "another"


@violates("checks_within_rate", epoch=2, checks=4)
def more_checks_than_allowed(rows: LakeRows) -> None:
    set_parameter(rows, 2, "check_rate_max", 3)


@violates("discards_have_their_cause", queue_id=0, queue_offset=3, cause="expired")
def given_up_before_its_time(rows: LakeRows) -> None:
    set_parameter(rows, 10, "half_retention_ms", 900_000)


@violates("discards_have_their_cause", queue_id=0, queue_offset=2, cause="check_max")
def given_up_with_checks_left(rows: LakeRows) -> None:
    set_parameter(rows, 6, "check_max", 3)


@violates("discards_are_copied", queue_id=0, queue_offset=10, problem="no copy")
def copy_is_dropped(rows: LakeRows) -> None:
    rows.take(COPIES, transaction_id="nobody")
    rows.keep_books()


@violates("discards_are_copied", queue_id=0, queue_offset=10)
def copy_says_another_cause(rows: LakeRows) -> None:
    rows.find(COPIES, transaction_id="nobody")["reason"] = "check_max"


@violates("halves_are_pending_or_ended", epoch=12, queue_id=0, queue_offset=14)
def pending_half_is_dropped(rows: LakeRows) -> None:
    rows.take("pending", epoch=12, transaction_id="young")
    rows.keep_books()


@violates("halves_are_pending_or_ended", epoch=12, queue_id=0, queue_offset=0)
def ended_half_is_pending(rows: LakeRows) -> None:
    row = rows.find("pending", epoch=12, transaction_id="young")
    rows.tables["pending"].append({**row, "queue_offset": 0, "transaction_id": "commit"})
    rows.keep_books()


@violates("pending_is_state", epoch=12, queue_id=0, queue_offset=14)
def attempts_are_miscounted(rows: LakeRows) -> None:
    rows.find("pending", epoch=12, transaction_id="young")["check_times"] = 2


@violates("pending_is_state", epoch=12, queue_id=0, queue_offset=3)
def discard_is_forgotten(rows: LakeRows) -> None:
    rows.find("pending", epoch=12, transaction_id="patient")["discard_cause"] = None


@violates("pending_is_state", epoch=3, queue_id=0, queue_offset=3)
def answer_is_forgotten(rows: LakeRows) -> None:
    rows.find("pending", epoch=3, transaction_id="patient")["last_answer_at"] = None


@violates("waiting_is_state", epoch=12, queue_id=0, op_queue_offset=14)
def waiting_end_is_dropped(rows: LakeRows) -> None:
    rows.take("waiting", epoch=12, op_queue_offset=14)
    rows.keep_books()


@violates("waiting_is_state", epoch=12, queue_id=0, op_queue_offset=15)
def waiting_end_says_otherwise(rows: LakeRows) -> None:
    rows.find("waiting", epoch=12, op_queue_offset=15)["decision"] = "ROLLBACK"


@violates("consumers_within_queues", consumer_group="points", topic="orders", queue_offset=99)
def consumer_beyond_the_end(rows: LakeRows) -> None:
    rows.find("consumer_offsets", queue_offset=1)["queue_offset"] = 99
