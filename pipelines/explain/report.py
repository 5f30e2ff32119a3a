"""A unit's report: its status, the rule, the places of its messages, the reasons for waiting.

Pure functions from a unit to plain values, but for `with_publications`; `show` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from checker.frames import COMMITTED, DISCARDED, ROLLED_BACK, UNREADABLE
from pipelines.epoch.parameters import plan_parameters
from pipelines.explain import rule_texts
from pipelines.explain.message_readers import Reader, readers_of
from pipelines.explain.reasons import ENDED, Reason, why_not_delivered, why_not_ended
from pipelines.explain.rows import LakeRows, Row
from pipelines.explain.rule_texts import Rule
from pipelines.explain.target import ExplainTarget, Transaction
from pipelines.explain.timeline import Event, events
from pipelines.explain.units import Unit, units_of
from storage.lake.floor import Floor
from storage.wire.record_kinds import HALF
from txlake.protocol import (
    ACCEPT_LOSS,
    UNDELIVERABLE_TOPIC,
    LostTarget,
    RecordTarget,
    UndeliverableTarget,
    command_target,
)

if TYPE_CHECKING:
    from pipelines.publish.locate import Publication, PublicationFinder
    from pipelines.settings import Settings

PENDING = "PENDING"
_NOT_DELIVERED = {
    "undeliverable": "UNDELIVERABLE",
    "cancelled": "CANCELLED",
    ENDED: ENDED.upper(),
}


@dataclass(frozen=True)
class Place:
    """The place at which a message was delivered. `is_deleted`: the topic may have deleted it."""

    topic: str
    table: str
    queue_id: int
    queue_offset: int
    epoch: int
    is_deleted: bool


@dataclass(frozen=True)
class MessageReport:
    """One message: its end, its place, its readers, and why it is not delivered yet.

    `publications`: what publishers have made of it; None if Kafka was not asked.
    """

    row: Row
    end: Row | None
    place: Place | None
    waits: tuple[Reason, ...]
    readers: tuple[Reader, ...] = ()
    publications: tuple[Publication, ...] | None = None


@dataclass(frozen=True)
class Decision:
    """One end and its rule. Units: ms. `numbers`: the values that the rule compared, in words."""

    outcome: str
    cause: str
    op_queue_offset: int | None
    rule: Rule
    numbers: str
    epoch: int
    epoch_at: int
    known_at: int | None
    is_committed: bool


@dataclass(frozen=True)
class Report:
    """The whole report about a unit."""

    unit: Unit
    status: str
    messages: tuple[MessageReport, ...]
    decisions: tuple[Decision, ...]
    waits: tuple[Reason, ...]
    events: tuple[Event, ...]

    @property
    def headline(self) -> str:
        """Returns the status; if it is COMMITTED also why a message is not delivered."""
        waiting = [message.waits for message in self.messages if message.place is None]
        if self.status != COMMITTED or not waiting:
            return self.status

        reasons = {
            waits[0].code.replace("_", " ") if waits else "not delivered" for waits in waiting
        }
        return f"{self.status}, {', '.join(sorted(reasons))}"


def reports(rows: LakeRows, now_ms: int, limit: int | None = None) -> tuple[list[Report], int]:
    """Returns the reports of the first `limit` units, and the number of further units.

    Without a limit: of all units.
    """
    units = units_of(rows)
    shown = units[:limit]
    return [_report(unit, now_ms) for unit in shown], len(units) - len(shown)


def with_publications(reports: Iterable[Report], settings: Settings) -> list[Report]:
    """Returns reports that say where delivered messages are published, by asking Kafka.

    Errors: LakeError.
    """
    from pipelines.publish.locate import PublicationFinder

    finder = PublicationFinder(settings)
    return [
        replace(
            report, messages=tuple(_with_publications(each, finder) for each in report.messages)
        )
        for report in reports
    ]


def _with_publications(message: MessageReport, finder: PublicationFinder) -> MessageReport:
    place = message.place
    if place is None:
        return message

    publications = finder.find(place.topic, place.queue_id, place.queue_offset)
    return replace(message, publications=tuple(publications))


def _report(unit: Unit, now_ms: int) -> Report:
    messages = tuple(_message(unit, message, now_ms) for message in unit.messages)
    return Report(
        unit=unit,
        status=_status(unit, messages),
        messages=messages,
        decisions=tuple(dict.fromkeys(_decision(unit, row) for row in unit.outcomes)),
        waits=tuple(why_not_ended(unit, now_ms)),
        events=tuple(events(unit)),
    )


def _status(unit: Unit, messages: Iterable[MessageReport]) -> str:
    if unit.error is not None:
        return UNREADABLE
    if unit.source != HALF:
        (message,) = messages
        codes = [wait.code for wait in message.waits]
        if message.place is not None:
            return "DELIVERED"
        return _NOT_DELIVERED.get(codes[0], "DELAYED") if codes else PENDING

    if unit.open_halves:
        is_discarded = any(half["discard_cause"] is not None for half in unit.halves)
        return DISCARDED if is_discarded else PENDING

    outcomes = {end["outcome"] for end in unit.ends.values()}
    if unit.left_halves and COMMITTED not in outcomes:
        return DISCARDED if unit.discards else ENDED.upper()
    return COMMITTED if COMMITTED in outcomes else ROLLED_BACK


def _message(unit: Unit, message: Row, now_ms: int) -> MessageReport:
    offset = message["queue_offset"]
    end = unit.ends.get(offset)
    place = _place(unit, offset, end)

    is_to_deliver = unit.source != HALF or (end is not None and end["outcome"] == COMMITTED)
    waits = why_not_delivered(unit, message, now_ms) if is_to_deliver and place is None else []
    return MessageReport(message, end, place, tuple(waits), _readers(unit, place))


def _readers(unit: Unit, place: Place | None) -> tuple[Reader, ...]:
    if place is None:
        return ()

    delivered = place.topic, place.queue_id, place.queue_offset
    return readers_of(delivered, unit.lake_rows.positions, unit.lake_rows.refusals)


def _place(unit: Unit, queue_offset: int, end: Row | None) -> Place | None:
    rows = [
        row
        for row in unit.deliveries
        if row["queue_offset"] == queue_offset
        and row["action"] == "DELIVERED"
        and unit.is_committed(row)
    ]

    if end is not None and end["real_queue_offset"] is not None:
        rows.append(end)

    if not rows:
        return None

    row = rows[-1]
    table = f"topics/{unit.lake_rows.table_ids.get(row['real_topic'])}"
    return Place(
        row["real_topic"],
        table,
        row["real_queue_id"],
        row["real_queue_offset"],
        row["epoch"],
        unit.lake_rows.is_deleted(table, row["epoch"]),
    )


def _decision(unit: Unit, row: Row) -> Decision:
    epoch = unit.lake_rows.epochs.get(row["epoch"])
    return Decision(
        outcome=row["outcome"],
        cause=row["cause"],
        op_queue_offset=row["op_queue_offset"],
        rule=_rule(unit, row),
        numbers=_compared_values(unit, row),
        epoch=row["epoch"],
        epoch_at=row["decided_at"],
        known_at=None if epoch is None else epoch.known_at.get(unit.queue_id),
        is_committed=unit.is_committed(row),
    )


def _rule(unit: Unit, row: Row) -> Rule:
    earlier = unit.is_ended_before(row)

    if earlier and row["outcome"] == ROLLED_BACK and row["cause"] != "duplicate_in_set":
        return rule_texts.AFTER_ROLLBACK

    if earlier and row["outcome"] == DISCARDED:
        return rule_texts.AFTER_DISCARD

    unknown = Rule(f"{row['outcome']}, {row['cause']}", "Every outcome, cause and reason")
    return rule_texts.OUTCOMES.get((row["outcome"], row["cause"]), unknown)


def _compared_values(unit: Unit, row: Row) -> str:
    """Returns in words the values that the rule of a discard compared; empty if one is missing."""
    epoch = unit.lake_rows.epochs.get(row["epoch"])
    known_at = None if epoch is None else epoch.known_at.get(unit.queue_id)
    if row["outcome"] != DISCARDED or epoch is None or known_at is None:
        return ""

    limits = plan_parameters(epoch)
    age_ms = known_at - unit.age_from_at(row["arm"])
    if row["cause"] == "expired":
        return (
            f"known_at - age_from_at = {age_ms} ms, half_retention_ms = {limits.half_retention_ms}"
        )

    attempts = [check for check in unit.checks if check["arm"] == row["arm"]]
    count = sum(check["acknowledged"] for check in attempts)
    text = f"check_times = {count}, check_max = {limits.check_max}, "
    if not attempts:
        return f"{text}known_at - age_from_at = {age_ms} ms"

    waited_ms = known_at - max(check["sent_at"] for check in attempts)
    return (
        f"{text}known_at - checked_at = {waited_ms} ms, check_interval_ms = "
        f"{limits.check_interval_ms}"
    )


def nothing_found(rows: LakeRows, target: ExplainTarget, lake_path: str) -> str:
    """Returns the sentence that a target is not in the lake, and how far the lake is."""
    where = f"in the lake {lake_path}, which stands at epoch {rows.epoch}"
    if isinstance(target, Transaction):
        return f"no half and no schedule record has transaction id {target.transaction_id} {where}"

    if isinstance(target, UndeliverableTarget):
        return f"there is no offset {target.queue_offset} in {UNDELIVERABLE_TOPIC} {where}"

    name = f"{target.kind} {target.queue_id}-{target.queue_offset}"
    newest = rows.newest
    ends = {} if newest is None else newest.queue_ends(newest.topics[target.kind])
    end = ends.get(target.queue_id)
    if end is None:
        return f"there is no {name} {where}: it has landed nothing of that queue"
    if target.queue_offset >= end:
        return f"there is no {name} {where}: that queue is landed up to offset {end}"

    loss = _accepted_loss(rows, target)
    if loss is not None:
        return (
            f"there is no {name} {where}: Kafka deleted it before it was landed, and "
            f"{loss['actor']} accepted that offsets {loss['offsets']} are lost: {loss['reason']}"
        )

    floor = Floor() if newest is None else newest.floor
    if target.kind == HALF and target.queue_offset < floor.offsets.get(target.queue_id, 0):
        return (
            f"there is no {name} {where}: it is below the floor of queue {target.queue_id} (offset "
            f"{floor.offsets[target.queue_id]}); what epochs up to {floor.deleted} landed is "
            "deleted, unless it still waited then"
        )

    return f"there is no {name} {where}, although that queue is landed up to offset {end}"


def _accepted_loss(rows: LakeRows, target: RecordTarget) -> dict[str, str] | None:
    """Returns the actor who accepted that a record is lost, the reason, and the lost offsets."""
    for row in rows.losses:
        target_of_loss = command_target(ACCEPT_LOSS, row["target"])
        if (
            row["result"] == "noted"
            and isinstance(target_of_loss, LostTarget)
            and (target_of_loss.kind, target_of_loss.partition) == (target.kind, target.queue_id)
            and target_of_loss.first <= target.queue_offset <= target_of_loss.last
        ):
            return {
                "actor": row["actor"] or "somebody",
                "reason": row["reason"] or "no reason is given",
                "offsets": f"{target_of_loss.first} to {target_of_loss.last}",
            }

    return None
