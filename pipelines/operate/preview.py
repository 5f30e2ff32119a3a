"""An operator's record, and the result that the rules would give if the job landed it now.

The decision is the job's own (`checker.decide`), over the state of the units that are named;
`known_at` is left out, so that time alone does nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from checker.decide import decide
from checker.frames import (
    COMMANDS,
    DELAYED,
    ENDED,
    HALVES,
    NAMINGS,
    QUEUES,
    Decision,
    Inputs,
    Instants,
    State,
)
from pipelines import output
from pipelines.epoch.lookups import find_undeliverable, to_operations
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.recorded_state import topics_before
from pipelines.epoch.signatures import with_verification
from pipelines.errors import OperatorError
from pipelines.explain import rule_texts
from pipelines.explain.fetch import find, find_records
from pipelines.explain.report import nothing_found
from pipelines.explain.rows import LakeRows, Row, latest_committed
from pipelines.explain.units import Unit, units_of
from pipelines.health.dead_letters import undeliverable_offsets
from pipelines.operate.records import Record, command, operation
from pipelines.settings import SecuritySettings
from storage import schemas
from storage.lake.lake import Lake
from storage.rows import instant
from storage.wire.record_kinds import HALF
from txlake.protocol import (
    UNDELIVERABLE_TOPIC,
    RecordTarget,
    Target,
    UndeliverableTarget,
)

STILL_UNDELIVERABLE: Final = "still_undeliverable"


@dataclass(frozen=True)
class Preview:
    """A record to write, and its effect on the lake as of `epoch`.

    `cluster_id`: of the Kafka that the lake is made from; empty when there is no epoch yet.
    """

    record: Record
    expected: str
    epoch: int
    cluster_id: str


@dataclass(frozen=True)
class _End:
    """An operation that would end a unit. `op_offset`: the next one of its queue."""

    unit: Unit
    stored: Row
    record: Record
    op_offset: int

    def row(
        self,
        now_ms: int,
        decision: str,
        actor: str,
        reason: str,
        security: SecuritySettings | None,
    ) -> Row:
        """Returns it as a row of the table `op`."""
        return {
            "queue_id": self.unit.queue_id,
            "queue_offset": self.op_offset,
            "stored_at": instant(now_ms),
            "producer_group": self.stored["producer_group"],
            "decision": decision,
            "half_offsets": [self.stored["queue_offset"]],
            "transaction_ids": [self.stored["transaction_id"]],
            "actor": actor,
            "reason": reason,
            "body": self.record.value,
            "signature": None if security is None else self.record.signature(security),
        }


class _TargetRows:
    """The rows about some halves and schedule records, read together."""

    def __init__(self, lake: Lake, targets: Sequence[Target | None]) -> None:
        self._lake = lake
        records = [target for target in targets if isinstance(target, RecordTarget)]
        self.rows = find_records(lake, records) if records else LakeRows(*latest_committed(lake))

        self._units = {
            unit.target(offset): unit for unit in units_of(self.rows) for offset in unit.offsets
        }
        self.topics = topics_before(lake, self.rows.epoch + 1)

    def unit(self, target: RecordTarget) -> Unit:
        """Returns the unit of a target. Errors: OperatorError if the lake has no such message."""
        if target not in self._units:
            alone = find(self._lake, target)  # with the losses that operators have accepted
            raise OperatorError(nothing_found(alone, target, self._lake.path))
        return self._units[target]


def preview_ends(
    lake: Lake,
    halves: Sequence[RecordTarget],
    decision: str,
    actor: str,
    reason: str,
    security: SecuritySettings | None = None,
) -> list[Preview | OperatorError]:
    """Returns for each half the preview of its end: its outcome, a conflict, or that it waits.

    They are decided as if one epoch landed them all, in this order.
    Input: `security`: the keys of the job's settings, as far as they are known here.
    Output: OperatorError for a half that the lake does not have, or that cannot be read.
    """
    target_rows = _TargetRows(lake, halves)
    ends = list(_ends(target_rows, halves, decision, actor, reason))
    possible = [end for end in ends if isinstance(end, _End)]

    now_ms = time.time_ns() // 1_000_000
    rows = [end.row(now_ms, decision, actor, reason, security) for end in possible]
    records = pa.Table.from_pylist(rows, schema=schemas.OP)
    if security is not None:
        records = with_verification(records, security)

    units = {id(end.unit): end.unit for end in possible}
    inputs = Inputs(operations=to_operations(records), ended=_ended_halves(units.values()))
    decided = _decide(target_rows, inputs, now_ms)

    return [
        _preview(target_rows.rows, end.record, _end_text(decided, end, target_rows.topics))
        if isinstance(end, _End)
        else end
        for end in ends
    ]


def _ends(
    target_rows: _TargetRows, halves: Sequence[RecordTarget], decision: str, actor: str, reason: str
) -> Iterator[_End | OperatorError]:
    newest = Counter[int]()
    for op in target_rows.rows.operations:
        newest[op["queue_id"]] = max(newest[op["queue_id"]], op["queue_offset"])

    for half in halves:
        try:
            unit = target_rows.unit(half)
        except OperatorError as error:
            yield error
            continue

        if unit.error is not None:
            yield OperatorError(
                f"{half} cannot be read ({unit.error}): no operation can end it, nothing was "
                "written"
            )
            continue

        (stored,) = [m for m in unit.messages if m["queue_offset"] == half.queue_offset]
        newest[half.queue_id] += 1
        record = operation(stored, decision, actor, reason)
        yield _End(unit, stored, record, newest[half.queue_id])


def preview_commands(
    lake: Lake, name: str, targets: Sequence[Target | None], actor: str, reason: str
) -> list[Preview | OperatorError]:
    """Returns for each target the preview of a command: its result, and where a message would go.

    They are decided as if one epoch landed them all, in this order.
    Output: OperatorError for a target whose place no message has.
    """
    target_rows = _TargetRows(lake, targets)
    errors = _command_errors(lake, target_rows, targets)
    texts = [None if target is None else str(target) for target in targets]
    commands = _frame(
        [
            {"admin_offset": number, "command": name, "target": text}
            for number, text in enumerate(texts)
            if number not in errors
        ],
        COMMANDS,
    )

    undeliverable = find_undeliverable(
        lake, commands, target_rows.topics, target_rows.rows.epoch + 1
    )
    inputs = Inputs(commands=commands, undeliverable=undeliverable)
    decided = _decide(target_rows, inputs, time.time_ns() // 1_000_000)

    results = {row["admin_offset"]: row["result"] for row in decided.command_results.to_pylist()}
    messages = undeliverable.to_pylist()

    previews: list[Preview | OperatorError] = []
    for number, (target, text) in enumerate(zip(targets, texts, strict=True)):
        if number in errors:
            previews.append(errors[number])
            continue

        result = results[number]
        own = [
            row for row in messages if target == UndeliverableTarget(row["undeliverable_offset"])
        ]
        places = list(_places(decided, {_key(row) for row in own}, target_rows.topics))
        if result == STILL_UNDELIVERABLE:
            places = [_obstacle(row, target_rows.topics) for row in own]

        expected = "; ".join([f"{result}: {rule_texts.RESULTS[result]}", *places])
        previews.append(_preview(target_rows.rows, command(name, text, actor, reason), expected))

    return previews


def _command_errors(
    lake: Lake, target_rows: _TargetRows, targets: Sequence[Target | None]
) -> dict[int, OperatorError]:
    """Returns the errors of targets whose place no message has, by their numbers."""
    offsets = {t.queue_offset for t in targets if isinstance(t, UndeliverableTarget)}
    existing = undeliverable_offsets(lake, offsets)
    errors = {}

    for number, target in enumerate(targets):
        if isinstance(target, RecordTarget):
            try:
                target_rows.unit(target)
            except OperatorError as error:
                errors[number] = error

        elif isinstance(target, UndeliverableTarget) and target.queue_offset not in existing:
            errors[number] = OperatorError(
                f"there is no offset {target.queue_offset} in {UNDELIVERABLE_TOPIC} of the lake "
                f"{lake.path}: nothing was written"
            )

    return errors


def all_of(previews: Sequence[Preview | OperatorError]) -> list[Preview]:
    """Returns previews that are all there. Errors: the first OperatorError among them."""
    for preview in previews:
        if isinstance(preview, OperatorError):
            raise preview
    return [preview for preview in previews if isinstance(preview, Preview)]


def _preview(lake_rows: LakeRows, record: Record, expected: str) -> Preview:
    cluster_id = "" if lake_rows.newest is None else lake_rows.newest.cluster_id
    return Preview(record, expected, lake_rows.epoch, cluster_id)


def _decide(target_rows: _TargetRows, inputs: Inputs, now_ms: int) -> Decision:
    lake_rows = target_rows.rows
    newest = lake_rows.newest
    units = units_of(lake_rows)
    queues = sorted({unit.queue_id for unit in units})
    ends = {} if newest is None else newest.queue_ends(newest.topics[HALF])

    state = State(
        halves=_frame([half for unit in units for half in unit.halves], HALVES),
        waiting=_frame(lake_rows.namings, NAMINGS),
        delayed=_frame(lake_rows.still_delayed, DELAYED),
        topics=target_rows.topics,
    )

    floors = {} if newest is None else newest.floor.offsets
    known = _frame(
        [{"queue_id": q, "half_end": ends.get(q, 0), "floor": floors.get(q)} for q in queues],
        QUEUES,
    )

    return decide(state, inputs, Instants(now_ms, known), plan_parameters(newest))


def _frame(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=schema)


def _ended_halves(units: Iterable[Unit]) -> pa.Table:
    """Returns the units' ended halves. Output: ENDED."""
    rows = [
        {
            **message,
            **end,
            "tran_size": message["tran_size"],
            "tran_seq": message["tran_seq"],
            "status": end["outcome"],
        }
        for unit in units
        for message in unit.messages
        if (end := unit.ends.get(message["queue_offset"])) is not None
    ]
    return _frame(rows, ENDED)


def _end_text(decision: Decision, end: _End, topics: pa.Table) -> str:
    """Returns in words the effect of an operation."""
    place = end.unit.queue_id, end.op_offset
    for conflict in decision.conflicts.to_pylist():
        if (conflict["queue_id"], conflict["op_queue_offset"]) == place:
            reason = conflict["reason"]
            return f"{reason}: {rule_texts.CONFLICTS[reason]}"

    ended = [
        row
        for row in decision.outcomes.to_pylist()
        if (row["queue_id"], row["op_queue_offset"]) == place
    ]
    if not ended:
        missing = ", ".join(map(str, end.unit.missing_seqs))
        return f"waits: its set is incomplete, TRAN_SEQ {missing} missing" if missing else "waits"

    halves = {(HALF, row["queue_id"], row["queue_offset"]) for row in ended}
    text = f"{ended[0]['outcome']}, cause {ended[0]['cause']}"
    return "; ".join([text, *_places(decision, halves, topics)])


def _key(message: Row) -> tuple[Any, ...]:
    return message["source"], message["queue_id"], message["queue_offset"]


def _places(decision: Decision, messages: set[tuple[Any, ...]], topics: pa.Table) -> Iterator[str]:
    """Returns in words the places to which messages would go. Input: the topics before."""
    queue_counts = {row["topic"]: row["queue_count"] for row in topics.to_pylist()}

    for row in decision.placements.to_pylist():
        if _key(row) not in messages:
            continue
        if not row["reason"]:
            yield f"delivered to topic {row['topic']}, queue {row['real_queue_id']}"
            continue

        text = f"undeliverable ({row['reason']})"
        queue_count = queue_counts.get(row["real_topic"])
        if row["asked_queue_id"] is not None and queue_count is not None:
            text += f", queue {row['asked_queue_id']} of {queue_count}"
        yield text

    for row in decision.delayed.to_pylist():
        if _key(row) in messages:
            yield f"delayed until {output.instant(row['deliver_at'])}"


def _obstacle(message: Row, topics: pa.Table) -> str:
    """Returns in words why a topic cannot take a message."""
    topic, queue_id = message["real_topic"], message["real_queue_id"]
    counts = {row["topic"]: row["queue_count"] for row in topics.to_pylist()}
    if topic not in counts:
        return f"there is no topic {topic}"
    if queue_id is not None and queue_id >= counts[topic]:
        return f"queue {queue_id} of {counts[topic]} of topic {topic}"
    return f"topic {topic}"
