"""The reasons why a unit is not decided, or not delivered, and its next step.

Pure functions from a unit, after the newest committed epoch, to sentences. `now_ms` only serves to
recognize a job that has been silent for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checker.rules.timing import CHECK_MAX, EXPIRED, next_step
from pipelines.epoch.parameters import plan_parameters
from pipelines.explain import rule_texts
from pipelines.explain.rows import Row
from pipelines.explain.rule_texts import Rule
from pipelines.explain.timeline import delayed_text
from pipelines.explain.units import Unit
from pipelines.output import instant, span
from storage.lake.epochs import Plan
from storage.wire.record_kinds import OP
from txlake._counted import counted
from txlake.protocol import ROLLBACK, UNKNOWN, UndeliverableTarget

# An instant that passed longer ago than this, without an epoch since: the job might not run.
_SILENT_MS = 60_000
# The code of what has ended without a row that says how; a list shows it as a status, too.
ENDED = "ended"
# How many halves a sentence names.
_NAMED_MAX = 3


@dataclass(frozen=True)
class Reason:
    """One reason, or one thing that a unit waits for: a code for programs, a rule for people.

    `until`: the instant at which it ends, ms, if there is one. `resume`: the target by
    which RESUME ends it.
    """

    code: str
    rule: Rule
    until: int | None = None
    resume: str | None = None

    def __str__(self) -> str:
        return str(self.rule)


def why_not_ended(unit: Unit, now_ms: int) -> list[Reason]:
    """Returns why a unit is not ended: causes first, the next step last."""
    if unit.error is not None:
        rule = Rule(f"it cannot be read ({unit.error}): it is never decided", rule_texts.READABLE)
        return [Reason("unreadable", rule)]

    if all(unit.is_committed(message) for message in unit.messages):
        return _why_pending(unit, now_ms)

    epoch = max(message["epoch"] for message in unit.messages)
    return [_uncommitted_reason("landed", epoch), *_why_pending(unit, now_ms)]


def _uncommitted_reason(action: str, epoch: int) -> Reason:
    return Reason(
        "not_committed", Rule(f"{action} in epoch {epoch}, not committed yet", "`epochs`")
    )


def _why_pending(unit: Unit, now_ms: int) -> list[Reason]:
    newest = unit.lake_rows.newest
    if newest is not None and unit.left_halves and not unit.open_halves:
        return [_left_reason(unit)]
    if newest is None or not unit.open_halves:
        return []

    early = sorted({row["epoch"] for row in unit.outcomes if not unit.is_committed(row)})
    if early:
        return [_uncommitted_reason("decided", early[0])]

    if not unit.halves:  # `why_not_ended` has said which epoch is not committed
        return []

    first = next(half for half in unit.halves if half["queue_offset"] == half["unit_offset"])
    waits = [*_end_reasons(unit, first), *_unread_operations(unit, newest)]
    if first["discard_cause"] is not None:
        return [*waits, _discard_reason(unit, first, newest)]
    return [
        *waits,
        *_unacknowledged_check(unit, first),
        _next_step_reason(unit, first, newest, now_ms),
    ]


def _left_reason(unit: Unit) -> Reason:
    """Returns why a unit below the floor has no end that is known."""
    deleted = unit.lake_rows.floor.deleted
    is_deleted = any(half["epoch"] <= deleted for half in unit.left_halves)
    rows = f"rows of epochs up to {deleted} can be deleted"

    if not unit.discards:
        text = f"it has ended, and what decided it is deleted: {rows}"
        return Reason(ENDED, Rule(text, rule_texts.RETENTION))

    cause = max(unit.discards.values(), key=lambda row: int(row["epoch"]))["cause"]
    text = f"given up ({cause}), and the floor has passed it since: nothing ends it any more"
    if is_deleted:
        text += f"; if it was ended late, that is deleted: {rows}"
    return Reason("below_floor", Rule(text, rule_texts.RETENTION))


def _end_reasons(unit: Unit, first: Row) -> Iterator[Reason]:
    """Returns why the operations that name the unit do not end it."""
    if unit.missing_seqs:
        names = ", ".join(map(str, unit.missing_seqs))
        size = unit.messages[0]["tran_size"]
        text = f"its set is incomplete: of TRAN_SIZE {size}, TRAN_SEQ {names} missing"
        yield Reason("set_incomplete", Rule(text, rule_texts.SETS, 2))
        yield from _split_set_reasons(unit)

    for op in unit.waiting:
        text = f"op {op['queue_id']}-{op['queue_offset']} {op['decision']} waits"
        behind = _blocking_operation(unit, first, op)
        if op["decision"] == ROLLBACK and behind:
            yield Reason(
                "rollback_waits_behind", Rule(f"{text} behind {behind}", rule_texts.SETS, 6)
            )
        elif unit.missing_seqs:
            rule = Rule(f"{text} until the set is complete", rule_texts.SETS, 5)
            yield Reason("end_waits_for_set", rule)

    if unit.waiting:
        return

    reasons = sorted({row["reason"] for row in unit.conflicts if unit.is_committed(row)})
    if reasons:
        text = f"every COMMIT or ROLLBACK that names it is without effect: {', '.join(reasons)}"
        yield Reason("only_conflicts", Rule(text, rule_texts.END_RULES))
    elif first["last_answer_at"] is not None:
        text = "the producer's last answer was UNKNOWN: it does not know yet"
        yield Reason("answered_unknown", Rule(text, rule_texts.END_RULES, 8))
    else:
        text = "no landed COMMIT or ROLLBACK names it"
        yield Reason("no_end", Rule(text, rule_texts.END_RULES))


def _split_set_reasons(unit: Unit) -> Iterator[Reason]:
    """Returns that members of the set stand in another half queue."""
    if unit.elsewhere:
        seqs = ", ".join(str(seq) for seq in sorted({row["tran_seq"] for row in unit.elsewhere}))
        halves = [f"half {row['queue_id']}-{row['queue_offset']}" for row in unit.elsewhere]
        names = ", ".join(halves[:_NAMED_MAX]) + (", ..." if len(halves) > _NAMED_MAX else "")
        text = (
            f"the producer sent TRAN_SEQ {seqs} to another half queue ({names}): that is another "
            "set, since all halves of a set stand in one half queue"
        )
        yield Reason("set_split", Rule(text, rule_texts.SETS, 1))


def _blocking_operation(unit: Unit, first: Row, rollback: Row) -> str | None:
    """Returns the operation of smaller offset that waits for its half and could end the set."""
    set_name = f"{first['producer_group']}/{first['transaction_id']}/{first['tran_size']}"
    decided = {
        (naming["op_queue_offset"], name)
        for naming in unit.lake_rows.namings
        if naming["queue_id"] == unit.queue_id
        for name in naming["decided_sets"] or ()
    }

    for naming in unit.lake_rows.namings:
        if (
            naming["queue_id"] == unit.queue_id
            and naming["op_queue_offset"] < rollback["queue_offset"]
            and naming["half_queue_offset"] not in unit.offsets
            and naming["decision"] != UNKNOWN
            and naming["producer_group"] == first["producer_group"]
            and naming["transaction_id"] in (None, first["transaction_id"])
            and naming["is_signed"] is not False
            and (naming["op_queue_offset"], set_name) not in decided
        ):
            place = f"{unit.queue_id}-{naming['op_queue_offset']}"
            half = f"{unit.queue_id}-{naming['half_queue_offset']}"
            return f"op {place}, which waits for half {half}"

    return None


def _unread_operations(unit: Unit, newest: Plan) -> Iterator[Reason]:
    """Returns the number of operations of the queue that the job has still to read."""
    for r in newest.ranges:
        if r.topic_partition == (newest.topics[OP], unit.queue_id) and r.end_offset > r.to_offset:
            text = (
                f"op queue {unit.queue_id} is landed up to offset {r.to_offset} and Kafka had "
                f"{r.end_offset} at epoch_at of epoch {newest.epoch}: "
                f"{counted(r.end_offset - r.to_offset, 'operation')} still to come"
            )
            yield Reason("ops_not_landed", Rule(text, "Words"))


def _discard_reason(unit: Unit, first: Row, newest: Plan) -> Reason:
    target = unit.target(first["queue_offset"])
    is_applied = plan_parameters(newest).late_end_policy == "apply"
    late = ": a late end still ends it, or" if is_applied else ", and late ends are rejected:"

    text = (
        f"given up ({first['discard_cause']}){late} `txlake dead resume {target}` makes it "
        "pending again"
    )
    return Reason("discarded", Rule(text, rule_texts.END_RULES), resume=str(target))


def _unacknowledged_check(unit: Unit, first: Row) -> Iterator[Reason]:
    """Returns a wait if the last attempt to ask did not reach Kafka."""
    attempts = [row for row in unit.checks if row["arm"] == first["arm"] and unit.is_committed(row)]

    if attempts and not attempts[-1]["acknowledged"]:
        text = (
            f"Kafka did not acknowledge the last check, sent {instant(attempts[-1]['sent_at'])} "
            f"(is there a check topic for group {first['producer_group']}?): it does not count"
        )
        yield Reason("not_acknowledged", Rule(text, rule_texts.EPOCH_RULES, 6))


def _next_step_reason(unit: Unit, first: Row, newest: Plan, now_ms: int) -> Reason:
    """Returns the next step that time brings: a check, or the discard."""
    parameters = plan_parameters(newest)
    step = next_step(first, parameters)
    known_at = newest.known_at.get(unit.queue_id)
    known_name = f"known_at of queue {unit.queue_id}"
    number = f"check {first['check_times'] + 1} of {parameters.check_max}"
    at = instant(step.reached_at)

    if known_at is None:
        text = f"{known_name} is not known yet: nothing is asked or discarded until it is"
        return Reason("not_known", Rule(text, rule_texts.EPOCH_RULES))

    if step.rule == EXPIRED:
        code = "expires"
        text = f"it is discarded (expired) when {known_name} reaches {at}"
    elif step.rule == CHECK_MAX:
        code = "last_check" if first["checked_at"] is not None else "immune"
        text = (
            f"asked {first['check_times']} of {counted(parameters.check_max, 'time')}; "
            f"it is discarded (check_max) when {known_name} reaches {at}"
        )
    elif step.line == 5:
        code = "immune"
        text = f"immune until {instant(step.reached_at - 1)}; then {number} is due"
    else:
        code = "check_due"
        text = f"{number} due at {at}"

    if known_at >= step.reached_at:
        text += (
            f"; {known_name} has passed that: the job does it in its next epoch, at most "
            f"check_rate_max = {counted(parameters.check_rate_max, 'check')} in one"
        )
    else:
        text += f"; {known_name} stands at {instant(known_at)}"

    if now_ms - max(step.reached_at, newest.epoch_at) > _SILENT_MS:
        text += (
            f"; the newest epoch, {newest.epoch}, was {span(now_ms - newest.epoch_at)} ago: is "
            "`txlake run` running?"
        )

    return Reason(code, Rule(text, rule_texts.EPOCH_RULES, step.line), step.reached_at)


def why_not_delivered(unit: Unit, message: Row, now_ms: int) -> list[Reason]:
    """Returns why a message that is to be delivered is not delivered yet; empty if it is."""
    offset = message["queue_offset"]
    last = _last_row(unit.deliveries, offset)
    if last is None:
        # Its first row can be deleted before its time comes: then a snapshot has it.
        delayed = _last_row(unit.delayed, offset) or _last_row(unit.still_delayed, offset)
        if _is_delivery_deleted(unit, message, delayed):
            text = "it was delivered or cancelled, and the row that says which is deleted"
            return [Reason(ENDED, Rule(text, rule_texts.RETENTION))]
        return [] if delayed is None else [_delay_reason(delayed, unit, now_ms)]

    if not unit.is_committed(last):
        return [_uncommitted_reason(last["action"], last["epoch"])]

    if last["action"] == "CANCELLED":
        nobody = {"actor": None, "reason": None}
        command = unit.lake_rows.commands_by_offset.get(last["admin_offset"], nobody)

        text = (
            f"its delay was cancelled{rule_texts.actor_text(command['actor'], command['reason'])}"
        )
        return [Reason("cancelled", Rule(text, rule_texts.COMMANDS))]

    if last["action"] == "UNDELIVERABLE":
        place = last["real_queue_offset"]

        reason = next(
            (row["reason"] for row in unit.lake_rows.undeliverable if row["queue_offset"] == place),
            "",
        )
        rule = rule_texts.UNDELIVERABLE.get(
            reason, Rule("its topic cannot take it", rule_texts.DELIVERY)
        )
        target = str(UndeliverableTarget(place))
        text = (
            f"undeliverable ({reason}): {rule.sentence}; it stands in TRANS_UNDELIVERABLE_TOPIC "
            f"at offset {place}: when topic {message['real_topic']} can take it, `txlake dead "
            f"resume {target}` delivers it"
        )
        return [Reason("undeliverable", Rule(text, rule.section), resume=target)]

    return []


def _is_delivery_deleted(unit: Unit, message: Row, delayed: Row | None) -> bool:
    """Returns whether a message below the floor waits no more, though nothing says its place."""
    offset = message["queue_offset"]
    if unit.is_delayed(offset) or (delayed is not None and not unit.is_committed(delayed)):
        return False

    decided = unit.ends.get(offset, message)
    return bool(decided["epoch"] <= unit.lake_rows.floor.deleted)


def _last_row(rows: list[Row], queue_offset: int) -> Row | None:
    """Returns the last of the rows about one message."""
    return next((row for row in reversed(rows) if row["queue_offset"] == queue_offset), None)


def _delay_reason(row: Row, unit: Unit, now_ms: int) -> Reason:
    newest = unit.lake_rows.newest
    text = f"{unit.target(row['queue_offset'])} {delayed_text(unit, row)}"

    if newest is not None and now_ms - row["deliver_at"] > _SILENT_MS:
        text += (
            f", which is {span(now_ms - row['deliver_at'])} ago; the newest epoch, "
            f"{newest.epoch}, has epoch_at {instant(newest.epoch_at)}: is `txlake run` running?"
        )

    return Reason("delayed", Rule(text, rule_texts.DELAY), row["deliver_at"])
