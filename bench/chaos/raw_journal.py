"""What the raw producer writes down: each record before it is sent, and where Kafka has it.

A record without an offset was perhaps sent: the process died, or Kafka did not answer. A promise
is what has to hold of records once the job has landed them; it is written when Kafka has them all,
and nothing that is sent later can change it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.journal import database_at, transaction_on

# Kinds of promises.
DELIVERED = "delivered"  # each message is in its topic, once; in one epoch and this order, if a set
WITHHELD = "withheld"  # no message is delivered
LATER = "later"  # delivered once, not before `not_before_ms`; not at all when it was cancelled
UNREADABLE = "unreadable"  # the record's row has the error `reason`
ORPHAN = "orphan"  # the operation expires, or waits still

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, story TEXT NOT NULL, queue_id INTEGER NOT NULL,
    body BLOB, about TEXT NOT NULL, queue_offset INTEGER, stored_ms INTEGER);
CREATE TABLE IF NOT EXISTS promises (kind TEXT NOT NULL, ids TEXT NOT NULL, facts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS silent (transaction_id TEXT PRIMARY KEY, ids TEXT NOT NULL);
"""


@dataclass(frozen=True)
class RawRecord:
    """A record of the raw producer's. `queue_offset`: None when it was perhaps sent."""

    id: str
    kind: str  # half, op, schedule, admin
    story: str
    queue_id: int
    body: bytes | None
    about: Mapping[str, Any]
    queue_offset: int | None = None
    stored_ms: int | None = None

    @property
    def transaction_id(self) -> str:
        """The transaction of a half or a schedule record."""
        return str(self.about["transaction_id"])


@dataclass(frozen=True)
class Promise:
    """What has to hold of records."""

    kind: str
    ids: tuple[str, ...]
    facts: Mapping[str, Any]


class RawJournal:
    """The raw producers' records and promises, in an SQLite file that outlives kill -9."""

    def __init__(self, path: Path) -> None:
        self.path = path
        database_at(path, _SCHEMA)

    def sending(self, record: RawRecord) -> None:
        """Notes a record before it is sent."""
        values = (record.id, record.kind, record.story, record.queue_id, record.body)
        with transaction_on(self.path) as database:
            database.execute(
                "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)",
                (*values, json.dumps(record.about)),
            )

    def stored(self, record_id: str, queue_offset: int, stored_ms: int) -> None:
        """Notes where Kafka has a record."""
        with transaction_on(self.path) as database:
            database.execute(
                "UPDATE records SET queue_offset = ?, stored_ms = ? WHERE id = ?",
                (queue_offset, stored_ms, record_id),
            )

    def promise(self, kind: str, ids: Iterable[str], **facts: Any) -> None:
        """Notes what has to hold of records from now on."""
        with transaction_on(self.path) as database:
            values = (kind, json.dumps(list(ids)), json.dumps(facts))
            database.execute("INSERT INTO promises VALUES (?, ?, ?)", values)

    def begin_silence(self, transaction_id: str, ids: Iterable[str]) -> None:
        """Notes the halves of a transaction that is left to be discarded."""
        with transaction_on(self.path) as database:
            values = (transaction_id, json.dumps(list(ids)))
            database.execute("INSERT OR REPLACE INTO silent VALUES (?, ?)", values)

    def end_silence(self, transaction_id: str) -> None:
        """Notes that nothing more is planned with a transaction."""
        with transaction_on(self.path) as database:
            database.execute("DELETE FROM silent WHERE transaction_id = ?", (transaction_id,))

    def silences(self) -> list[list[RawRecord]]:
        """Returns the halves of every transaction that a dead producer left to be discarded."""
        records = self.records()
        rows = self._rows("SELECT ids FROM silent ORDER BY transaction_id")
        return [[records[id_] for id_ in json.loads(ids)] for (ids,) in rows]

    def records(self) -> dict[str, RawRecord]:
        """Returns every record by its id."""
        rows = self._rows("SELECT * FROM records")
        return {
            id_: RawRecord(id_, kind, story, queue_id, body, json.loads(about), offset, stored_ms)
            for id_, kind, story, queue_id, body, about, offset, stored_ms in rows
        }

    def promises(self) -> list[Promise]:
        """Returns every promise."""
        rows = self._rows("SELECT kind, ids, facts FROM promises")
        return [Promise(row[0], tuple(json.loads(row[1])), json.loads(row[2])) for row in rows]

    def _rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            return database.execute(query).fetchall()
