"""All rows of a lake about some messages: few files, few columns, never a body.

The rows are those of the newest committed epoch. Rows of the next epoch, which can be planned and
half written, are read too: their epoch distinguishes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import DISCARDED
from pipelines.epoch.recorded_state import latest_rows, read_state, read_state_log
from pipelines.explain.consumer_positions import read_positions
from pipelines.explain.message_readers import read_refusals
from pipelines.explain.operations import find_operations
from pipelines.explain.rows import (
    LakeRows,
    Row,
    contains_keys,
    latest_committed,
    latest_floor,
    set_key,
    to_dicts,
    with_keys,
)
from pipelines.explain.target import ExplainTarget, Transaction
from storage.errors import MissingTableError
from storage.lake.aging import snapshot_before
from storage.lake.history import read_plans
from storage.lake.integrity import require_readable
from storage.lake.lake import Lake
from storage.lake.pruned import Bounds, read_rows
from storage.lake.table import deleted_epoch
from storage.schemas import PUT
from storage.wire.record_kinds import HALF, SCHEDULE
from txlake import protocol as p

MESSAGE_COLUMNS = [
    "queue_id",
    "queue_offset",
    "stored_at",
    "epoch",
    "producer_group",
    "transaction_id",
    "real_topic",
    "real_queue_id",
    "keys",
    "tags",
    "delay_level",
    "delay_ms",
    "deliver_at",
    "immunity_ms",
    "tran_size",
    "tran_seq",
    "born_at",
    "error",
]
_ADMIN_COLUMNS = [
    "queue_offset",
    "stored_at",
    "epoch",
    "command",
    "target",
    "actor",
    "reason",
    "result",
]
_COPY_COLUMNS = [
    "queue_offset",
    "stored_at",
    "source",
    "reason",
    "half_queue_id",
    "half_queue_offset",
    "epoch",
]
_READERS = 4
_TRIES = 3

# Halves and schedule records; of sets also the halves of the same transaction ids in other queues.
Messages = tuple[list[Row], Sequence[Row]]
FindMessages = Callable[[Mapping[str, int]], Messages]  # from the tables' numbers, by topic


def find(lake: Lake, target: ExplainTarget) -> LakeRows:
    """Returns all rows of a lake about a target; no messages if the lake has none of it.

    An epoch that is committed while its rows are read might be read in part: it is read again.
    Errors: BrokenLakeError, also when the table of a topic that the messages name is not whole.
    """

    def find_messages(table_ids: Mapping[str, int]) -> Messages:
        record = _undeliverable_record(lake, table_ids, target)
        if record is None:
            return [], ()
        if isinstance(record, Transaction):
            return _find_transaction(lake, record), ()
        return _find_records(lake, [record])

    return _find(lake, find_messages)


def find_records(lake: Lake, targets: Sequence[p.RecordTarget]) -> LakeRows:
    """Returns all rows of a lake about some halves and schedule records, read together.

    Errors: as `find`.
    """
    return _find(lake, lambda _: _find_records(lake, targets))


def _find(lake: Lake, find_messages: FindMessages) -> LakeRows:
    """Returns the rows about the messages that `find_messages` returns. Errors: as `find`."""
    with ThreadPoolExecutor(_READERS) as pool:
        rows = _find_once(lake, pool, find_messages)
        for _ in range(_TRIES):
            if not rows.has_uncommitted_rows or latest_committed(lake)[0] == rows.epoch:
                break

            rows = _find_once(lake, pool, find_messages)

    real_topics = {message["real_topic"] for message in rows.messages}
    topics = {p.CHECK_MAX_TOPIC, p.UNDELIVERABLE_TOPIC, *real_topics}
    tables = [f"topics/{rows.table_ids[topic]}" for topic in topics if topic in rows.table_ids]
    require_readable(lake, tables)

    existing = filter(lake.is_table, tables)
    ends = (*rows.outcomes, *rows.deliveries)
    delivered = {
        (row["real_topic"], row["real_queue_id"], row["real_queue_offset"])
        for row in ends
        if row["real_queue_offset"] is not None
    }
    return replace(
        rows,
        deleted={table: deleted_epoch(lake.handle(table)) for table in existing},
        floor=latest_floor(lake),
        positions=read_positions(lake) if delivered else (),
        refusals=read_refusals(lake, delivered),
    )


def _find_once(lake: Lake, pool: ThreadPoolExecutor, find_messages: FindMessages) -> LakeRows:
    catalog = pool.submit(read_rows, lake, "catalog", ["topic", "table_id"], {})
    epoch, epochs = latest_committed(lake)
    table_ids = {row["topic"]: row["table_id"] for row in catalog.result().to_pylist()}

    messages, elsewhere = find_messages(table_ids)
    rows = LakeRows(epoch, epochs, messages, elsewhere, table_ids=table_ids)

    if messages:
        return RelatedRows(lake, pool, rows).fetch()

    return replace(rows, losses=_read_commands(lake, [p.ACCEPT_LOSS]))


def find_by_keys(lake: Lake, keys: str) -> list[Row]:
    """Returns the messages whose KEYS are this text, or have it as one of their words."""
    rows = [row for source in (HALF, SCHEDULE) for row in _source_rows(lake, source, {}, keys)]
    return sorted(rows, key=itemgetter("stored_at", "queue_id", "queue_offset"))


def _undeliverable_record(
    lake: Lake, table_ids: Mapping[str, int], target: ExplainTarget
) -> p.RecordTarget | Transaction | None:
    """Returns the record that an undeliverable message comes from, or any other target as it is.

    Output: None if the lake has no such message.
    """
    if not isinstance(target, p.UndeliverableTarget):
        return target
    if p.UNDELIVERABLE_TOPIC not in table_ids:
        return None

    table = f"topics/{table_ids[p.UNDELIVERABLE_TOPIC]}"
    require_readable(lake, [table])
    rows = read_rows(lake, table, _COPY_COLUMNS, {"queue_offset": [target.queue_offset]})
    for row in to_dicts(rows):
        return p.RecordTarget(row["source"], row["half_queue_id"], row["half_queue_offset"])

    return None


def _find_transaction(lake: Lake, target: Transaction) -> list[Row]:
    """Returns the halves or schedule records of a transaction id."""
    of_id: Bounds = {"transaction_id": [target.transaction_id]}
    return _source_rows(lake, HALF, of_id) or _source_rows(lake, SCHEDULE, of_id)


def _find_records(lake: Lake, targets: Sequence[p.RecordTarget]) -> Messages:
    """Returns the targets' halves, whole sets, and schedule records."""
    halves = _rows_of_targets(lake, HALF, targets)
    schedules = _rows_of_targets(lake, SCHEDULE, targets)

    alone = [half for half in halves if not set_key(half)]
    of_sets = [half for half in halves if set_key(half)]
    if not of_sets:
        return [*alone, *schedules], ()

    keys = {set_key(half) for half in of_sets}
    queues: dict[str, set[int]] = {}
    for half in of_sets:
        queues.setdefault(half["transaction_id"], set()).add(half["queue_id"])

    of_ids = _source_rows(lake, HALF, {"transaction_id": sorted(queues)})
    members = [row for row in of_ids if set_key(row) in keys]
    elsewhere = [row for row in of_ids if row["queue_id"] not in queues[row["transaction_id"]]]
    return [*alone, *members, *schedules], elsewhere


def _rows_of_targets(lake: Lake, kind: str, targets: Sequence[p.RecordTarget]) -> list[Row]:
    places = {(t.queue_id, t.queue_offset) for t in targets if t.kind == kind}
    bounds: Bounds = {
        "queue_id": sorted({queue_id for queue_id, _ in places}),
        "queue_offset": sorted({offset for _, offset in places}),
    }
    rows = _source_rows(lake, kind, bounds)
    return [row for row in rows if (row["queue_id"], row["queue_offset"]) in places]


def _source_rows(lake: Lake, source: str, bounds: Bounds, keys: str | None = None) -> list[Row]:
    where = None if keys is None else contains_keys(keys)
    messages = read_rows(lake, source, MESSAGE_COLUMNS, bounds, where)
    if keys is not None:
        messages = with_keys(messages, keys)

    rows = to_dicts(messages)
    rows.sort(key=itemgetter("queue_id", "queue_offset"))
    return [{**row, "source": source} for row in rows]


def _read_commands(lake: Lake, names: Sequence[str]) -> list[Row]:
    """Returns the landed commands of these names."""
    where = pc.field("command").isin(names)
    return to_dicts(read_rows(lake, "admin", _ADMIN_COLUMNS, {}, where))


def _place_of(row: Row) -> tuple[str, int, int]:
    return row.get("source", HALF), row["queue_id"], row["queue_offset"]


class RelatedRows:
    """Rows of other tables about some messages."""

    def __init__(self, lake: Lake, pool: ThreadPoolExecutor, rows: LakeRows) -> None:
        self._lake = lake
        self._pool = pool
        self._rows = rows
        self._epoch = rows.epoch

        self._places = {_place_of(message) for message in rows.messages}
        self._queues = sorted({message["queue_id"] for message in rows.messages})
        offsets = sorted({message["queue_offset"] for message in rows.messages})
        self._at_place: Bounds = {"queue_id": self._queues, "queue_offset": offsets}

    def fetch(self) -> LakeRows:
        """Returns the given rows with the related ones; reads the tables side by side."""
        rows = self._read_parallel(
            outcomes=partial(self._rows_at_places, "outcomes"),
            checks=partial(self._rows_at_places, "checks"),
            deliveries=partial(self._rows_at_places, "deliveries"),
            namings=self._read_namings,
            conflicts=self._read_conflicts,
            commands=partial(_read_commands, self._lake, [p.RESUME, p.RESEND, p.CANCEL]),
            recorded=self._read_states,
            delayed=self._read_delayed,
        )
        pending, halves = rows.pop("recorded")
        rows["delayed"], still_delayed = rows["delayed"]

        targets = {p.RecordTarget(*place) for place in self._places}
        rearms = [row for row in rows["commands"] if p.read_target(row["target"]) in targets]
        cited = [*rows["outcomes"], *rows["deliveries"], *rows["delayed"], *rearms]
        missing_epochs = {row["epoch"] for row in cited} - set(self._rows.epochs)

        discard_epochs = {o["epoch"] for o in rows["outcomes"] if o["outcome"] == DISCARDED}
        undeliverable_offsets = {
            d["real_queue_offset"] for d in rows["deliveries"] if d["action"] == "UNDELIVERABLE"
        }
        further_rows = self._read_parallel(
            plans=partial(read_plans, self._lake, missing_epochs),
            operations=partial(
                find_operations,
                self._lake,
                [m for m in self._rows.messages if m["source"] == HALF],
                rows["outcomes"],
                rows["conflicts"],
                rows["namings"],
                self._rows.newest,
            ),
            copies=partial(self._internal_topic_rows, p.CHECK_MAX_TOPIC, "epoch", discard_epochs),
            undeliverable=partial(
                self._internal_topic_rows,
                p.UNDELIVERABLE_TOPIC,
                "queue_offset",
                undeliverable_offsets,
            ),
        )

        return replace(
            self._rows,
            epochs={**self._rows.epochs, **further_rows.pop("plans")},
            pending=pending,
            halves=halves,
            still_delayed=still_delayed,
            **rows,
            **further_rows,
        )

    def _read_parallel(self, **reads: Callable[[], Any]) -> dict[str, Any]:
        """Returns the result of each read; they run side by side."""
        futures = {name: self._pool.submit(read) for name, read in reads.items()}
        return {name: future.result() for name, future in futures.items()}

    def _read_states(self) -> tuple[list[Row], list[Row]]:
        """Returns all that was recorded of the halves, the oldest first, and their state."""
        rows = read_state_log(self._lake, "pending", self._epoch, bounds=self._at_place)
        recorded = sorted(to_dicts(rows), key=itemgetter("epoch", "queue_id", "queue_offset"))
        return recorded, to_dicts(latest_rows("pending", rows))

    def _read_delayed(self) -> tuple[list[Row], list[Row]]:
        """Returns the rows of delayed messages, and of those that still wait."""
        columns = self._lake.schema("delayed").names
        rows = read_rows(self._lake, "delayed", columns, self._at_place)

        state = latest_rows("delayed", rows.filter(pc.field("epoch") <= self._epoch))
        return self._keep_places(rows.filter(pc.field("change") == PUT)), self._keep_places(state)

    def _read_namings(self) -> list[Row]:
        """Returns the namings that wait in the halves' queues."""
        snapshot = snapshot_before(self._lake, self._epoch)
        bounds: Bounds = {"queue_id": self._queues}
        return to_dicts(read_state(self._lake, "waiting", self._epoch, snapshot, bounds))

    def _rows_at_places(self, table: str) -> list[Row]:
        columns = self._lake.schema(table).names
        return self._keep_places(read_rows(self._lake, table, columns, self._at_place))

    def _keep_places(self, rows: pa.Table) -> list[Row]:
        return [row for row in to_dicts(rows) if _place_of(row) in self._places]

    def _read_conflicts(self) -> list[Row]:
        """Returns conflicts of the halves, and of unreadable records that might name them."""
        columns = self._lake.schema("conflicts").names
        offsets = self._at_place["queue_offset"]
        bounds: Bounds = {"queue_id": self._queues, "half_queue_offset": offsets}

        unreadable: Bounds = {"queue_id": self._queues, "reason": ["unreadable_operation"]}
        rows = [
            row
            for row in to_dicts(read_rows(self._lake, "conflicts", columns, bounds))
            if (HALF, row["queue_id"], row["half_queue_offset"]) in self._places
        ]

        return rows + to_dicts(read_rows(self._lake, "conflicts", columns, unreadable))

    def _internal_topic_rows(self, topic: str, column: str, values: set[int]) -> list[Row]:
        """Returns the messages' copies in a topic of the job's own, those with some values."""
        if topic not in self._rows.table_ids:
            return []

        table = f"topics/{self._rows.table_ids[topic]}"
        try:
            rows = to_dicts(read_rows(self._lake, table, _COPY_COLUMNS, {column: sorted(values)}))
        except MissingTableError:  # not made yet, or lost: `find` tells which
            return []

        return [
            row
            for row in rows
            if (row["source"], row["half_queue_id"], row["half_queue_offset"]) in self._places
        ]
