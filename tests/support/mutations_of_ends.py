"""Violations of what is said of ends, operations and conflicts."""

from __future__ import annotations

from tests.support.lake_rows import LakeRows
from tests.support.mutation import LAST, move, range_of, set_parameter, set_range, violates


@violates("outcomes_have_their_half", queue_id=0, queue_offset=0)
def another_transaction_id(rows: LakeRows) -> None:
    rows.find("outcomes", transaction_id="commit")["transaction_id"] = "another"


@violates("outcomes_have_their_half", queue_id=0, queue_offset=99)
def outcome_of_no_half(rows: LakeRows) -> None:
    outcome = {**rows.find("outcomes", transaction_id="rollback"), "queue_offset": 99}
    rows.tables["outcomes"].append(outcome)
    rows.keep_books()


@violates("outcomes_have_their_half", queue_id=0, queue_offset=5)
def outcome_of_an_unreadable_half(rows: LakeRows) -> None:
    outcome = {**rows.find("outcomes", transaction_id="rollback"), "queue_offset": 5}
    rows.tables["outcomes"].append(outcome)
    rows.keep_books()


@violates("halves_end_once", queue_id=0, queue_offset=0)
def two_final_outcomes(rows: LakeRows) -> None:
    outcome = {**rows.find("outcomes", transaction_id="commit"), "outcome": "ROLLED_BACK"}
    move(rows, outcome, 12)
    rows.tables["outcomes"].append(outcome)
    rows.keep_books()


@violates("halves_end_once", queue_id=0, queue_offset=1)
def outcome_row_twice(rows: LakeRows) -> None:
    rows.tables["outcomes"].append(dict(rows.find("outcomes", transaction_id="rollback")))
    rows.keep_books()


@violates("arms_are_rearms", what="outcomes", queue_id=0, queue_offset=2)
def arm_of_an_outcome(rows: LakeRows) -> None:
    rows.find("outcomes", transaction_id="silent", outcome="COMMITTED")["arm"] = 0


@violates("arms_are_rearms", what="checks", queue_id=0, queue_offset=14)
def arm_of_a_check(rows: LakeRows) -> None:
    rows.find("checks", queue_offset=14).update(arm=1, check_id="0-14-1-1")


@violates("ends_have_their_operation", queue_id=0, queue_offset=0)
def wrong_cause(rows: LakeRows) -> None:
    rows.find("outcomes", transaction_id="commit")["cause"] = "operator"


@violates("ends_have_their_operation", queue_id=0, queue_offset=1, problem="no such operation")
def operation_is_dropped(rows: LakeRows) -> None:
    rows.take("op", queue_id=0, queue_offset=1)
    rows.keep_books()


@violates("ends_have_their_operation", queue_id=0, queue_offset=1)
def operation_says_otherwise(rows: LakeRows) -> None:
    rows.find("op", queue_id=0, queue_offset=1)["decision"] = "COMMIT"


@violates("ends_have_their_operation", queue_id=0, queue_offset=1)
def ended_an_epoch_late(rows: LakeRows) -> None:
    move(rows, rows.find("outcomes", transaction_id="rollback"), 2)
    rows.keep_books()


@violates("first_valid_end_wins", queue_id=0, queue_offset=4, op_queue_offset=4)
def third_end_wins(rows: LakeRows) -> None:
    rows.find("outcomes", transaction_id="contested").update(op_queue_offset=4, cause="operation")
    rows.find("conflicts", queue_id=0, op_queue_offset=4)["op_queue_offset"] = 2


@violates("sets_end_together", queue_id=1, queue_offset=1)
def member_ends_otherwise(rows: LakeRows) -> None:
    rows.find("outcomes", queue_id=1, queue_offset=1)["cause"] = "operator"


@violates("sets_end_together", queue_id=1, queue_offset=2)
def duplicate_is_no_duplicate(rows: LakeRows) -> None:
    rows.find("outcomes", queue_id=1, queue_offset=2)["cause"] = "operation"


@violates("namings_accounted", queue_id=0, op_queue_offset=3, half_queue_offset=4)
def conflict_is_dropped(rows: LakeRows) -> None:
    rows.take("conflicts", queue_id=0, op_queue_offset=3)
    rows.keep_books()


@violates("namings_accounted", queue_id=0, op_queue_offset=10, position=None)
def unreadable_operation_is_dropped(rows: LakeRows) -> None:
    rows.take("conflicts", reason="unreadable_operation")
    rows.keep_books()


@violates("namings_accounted", queue_id=0, op_queue_offset=17, half_queue_offset=14)
def valid_end_without_effect(rows: LakeRows) -> None:
    operation = {**rows.find("op", queue_id=0, queue_offset=0), "queue_offset": 17}
    operation |= {"half_offsets": [14], "transaction_ids": ["young"], "epoch": 12}
    rows.tables["op"].append(operation)
    set_range(rows, 12, {**range_of(rows, 12, "ops", 0), "to_offset": 18, "end_offset": 18})
    rows.keep_books()


@violates("namings_accounted", queue_id=0, op_queue_offset=15, half_queue_offset=40)
def orphan_is_not_given_up(rows: LakeRows) -> None:
    set_parameter(rows, LAST, "orphan_operation_ttl_ms", 1_000)


@violates("namings_accounted", queue_id=0, op_queue_offset=14, half_queue_offset=15)
def rollback_waits_for_nothing(rows: LakeRows) -> None:
    rows.find("op", queue_id=0, queue_offset=14)["decision"] = "ROLLBACK"
    for row in rows.tables["waiting"]:
        if row["op_queue_offset"] == 14:
            row["decision"] = "ROLLBACK"


@violates("conflicts_are_true", queue_id=1, op_queue_offset=6, reason="bad_signature")
def signed_answer_is_turned_down(rows: LakeRows) -> None:
    operation = rows.find("op", queue_id=1, queue_offset=6)
    operation.update(is_signed=True, decision="UNKNOWN")


@violates("namings_accounted", queue_id=1, op_queue_offset=6, half_queue_offset=9)
def forged_operation_is_not_told(rows: LakeRows) -> None:
    rows.take("conflicts", reason="bad_signature")
    rows.keep_books()


@violates("namings_accounted", queue_id=1, op_queue_offset=11, half_queue_offset=14)
def nameless_answer_is_not_told(rows: LakeRows) -> None:
    rows.take("conflicts", reason="no_transaction_id", op_queue_offset=11)
    rows.keep_books()


@violates("conflicts_are_true", queue_id=1, op_queue_offset=11, reason="no_transaction_id")
def nameless_operator_is_turned_down(rows: LakeRows) -> None:
    rows.find("op", queue_id=1, queue_offset=11).update(from_check=False, actor="ada")


@violates("namings_accounted", queue_id=1, op_queue_offset=9, half_queue_offset=11)
def end_after_immunity_is_not_told(rows: LakeRows) -> None:
    rows.take("conflicts", reason="after_immunity")
    rows.keep_books()


@violates("conflicts_are_true", queue_id=1, op_queue_offset=9, reason="after_immunity")
def unknown_after_immunity_is_turned_down(rows: LakeRows) -> None:
    rows.find("op", queue_id=1, queue_offset=9)["decision"] = "UNKNOWN"


@violates("conflicts_are_true", queue_id=0, op_queue_offset=3, reason="duplicate_end")
def wrong_reason(rows: LakeRows) -> None:
    rows.find("conflicts", queue_id=0, op_queue_offset=3)["reason"] = "duplicate_end"


@violates("conflicts_are_true", queue_id=0, op_queue_offset=0, half_queue_offset=0)
def conflict_of_the_winner(rows: LakeRows) -> None:
    winner = {"op_queue_offset": 0, "half_queue_offset": 0}
    rows.tables["conflicts"].append(
        {**rows.find("conflicts", op_queue_offset=4, queue_id=0), **winner}
    )
    rows.keep_books()


@violates("conflicts_are_true", queue_id=1, op_queue_offset=3, reason="orphan_expired")
def orphan_is_given_up_too_early(rows: LakeRows) -> None:
    set_parameter(rows, 6, "orphan_operation_ttl_ms", 900_000)


@violates("conflicts_are_true", queue_id=0, op_queue_offset=16, reason="end_after_discard")
def late_end_is_turned_down(rows: LakeRows) -> None:
    set_parameter(rows, 11, "late_end_policy", "apply")


@violates("ends_have_their_operation", queue_id=0, queue_offset=9)
def late_end_is_applied(rows: LakeRows) -> None:
    set_parameter(rows, 8, "late_end_policy", "reject")
