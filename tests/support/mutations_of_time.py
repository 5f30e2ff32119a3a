"""Violations of what is said of checks, discards, snapshots and consumers."""

from __future__ import annotations

from tests.support.lake_rows import LakeRows
from tests.support.mutation import COPIES, move, set_parameter, violates


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


@violates("checks_spaced", queue_id=0, queue_offset=10, epoch=8)
def asked_again_before_the_back_off(rows: LakeRows) -> None:
    set_parameter(rows, 8, "check_interval_ms", 2_001)


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


@violates("nobody_waits_too_long", queue_id=0, queue_offset=3, arm=0)
def half_expires_earlier(rows: LakeRows) -> None:
    set_parameter(rows, 9, "half_retention_ms", 6_000)


@violates("discards_are_copied", queue_id=0, queue_offset=10, problem="no copy")
def copy_is_dropped(rows: LakeRows) -> None:
    rows.take(COPIES, transaction_id="nobody")
    rows.keep_books()


@violates("discards_are_copied", queue_id=0, queue_offset=10)
def copy_says_another_cause(rows: LakeRows) -> None:
    rows.find(COPIES, transaction_id="nobody")["reason"] = "check_max"


@violates("halves_are_pending_or_ended", epoch=10, queue_id=0, queue_offset=14)
def pending_half_is_not_recorded(rows: LakeRows) -> None:
    rows.take("pending", epoch=10, queue_offset=14, change="put")
    rows.keep_books()


@violates("halves_are_pending_or_ended", epoch=10, queue_id=0, queue_offset=0)
def ended_half_is_pending(rows: LakeRows) -> None:
    row = rows.find("pending", epoch=10, queue_offset=14, change="put")
    rows.tables["pending"].append({**row, "queue_offset": 0, "transaction_id": "commit"})
    rows.keep_books()


@violates("halves_are_pending_or_ended", epoch=8, queue_id=0, queue_offset=9)
def end_is_not_recorded(rows: LakeRows) -> None:
    rows.take("pending", epoch=8, queue_offset=9, change="left")
    rows.keep_books()


@violates("pending_is_state", epoch=11, queue_id=0, queue_offset=14)
def attempts_are_miscounted(rows: LakeRows) -> None:
    rows.find("pending", epoch=11, queue_offset=14, change="put")["check_times"] = 2


@violates("pending_is_state", epoch=1, queue_id=0, queue_offset=10)
def unacknowledged_attempts_are_miscounted(rows: LakeRows) -> None:
    rows.find("pending", epoch=1, queue_offset=10, change="put")["unacknowledged"] = 1


@violates("pending_is_state", epoch=10, queue_id=0, queue_offset=3)
def discard_is_forgotten(rows: LakeRows) -> None:
    rows.find("pending", epoch=10, queue_offset=3, change="put")["discard_cause"] = None


@violates("pending_is_state", epoch=1, queue_id=0, queue_offset=3)
def answer_is_forgotten(rows: LakeRows) -> None:
    rows.find("pending", epoch=1, queue_id=0, queue_offset=3, change="put")["last_answer_at"] = None


@violates("pending_is_state", queue_id=0, queue_offset=14, problem="2 rows of this epoch")
def change_is_recorded_twice(rows: LakeRows) -> None:
    row = rows.find("pending", epoch=10, queue_offset=14, change="put")
    rows.tables["pending"].append(dict(row))
    rows.keep_books()


@violates("pending_is_state", epoch=12, queue_id=0, queue_offset=14, problem="changes nothing")
def nothing_is_recorded_as_a_change(rows: LakeRows) -> None:
    row = rows.find("pending", epoch=11, queue_offset=14, change="put")
    rows.tables["pending"].append({**row, "epoch": 12})
    rows.keep_books()


@violates("waiting_is_state", epoch=10, queue_id=0, op_queue_offset=14)
def waiting_end_is_dropped(rows: LakeRows) -> None:
    rows.take("waiting", epoch=10, op_queue_offset=14, change="put")
    rows.keep_books()


@violates("waiting_is_state", epoch=10, queue_id=0, op_queue_offset=15)
def waiting_end_says_otherwise(rows: LakeRows) -> None:
    rows.find("waiting", epoch=10, op_queue_offset=15, change="put")["decision"] = "ROLLBACK"


@violates("snapshots_are_changes", epoch=12, table="pending", place="0-14")
def snapshot_lacks_a_half(rows: LakeRows) -> None:
    rows.take("pending", epoch=12, queue_id=0, queue_offset=14, change="snapshot")
    rows.keep_books()


@violates("snapshots_are_changes", epoch=12, table="pending", place="0-3")
def snapshot_says_otherwise(rows: LakeRows) -> None:
    rows.find("pending", epoch=12, queue_offset=3, change="snapshot")["discards"] = 2


@violates("snapshots_are_changes", epoch=12, table="waiting", place="0-14-0")
def snapshot_has_a_naming_twice(rows: LakeRows) -> None:
    row = rows.find("waiting", epoch=12, op_queue_offset=14, change="snapshot")
    rows.tables["waiting"].append(dict(row))
    rows.keep_books()


@violates("consumers_within_queues", consumer_group="points", topic="orders", queue_offset=99)
def consumer_beyond_the_end(rows: LakeRows) -> None:
    rows.find("consumer_offsets", queue_offset=1)["queue_offset"] = 99
