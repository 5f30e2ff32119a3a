"""What the chaos run's own processes write down: the truth that the lake is compared with.

`Journal` is the producers' database: the local transactions, with a guard row each. `Seen` is the
consumer's. Both are SQLite files that outlive kill -9 of those who write them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from txlake import ConsumedMessage

# How a local transaction ended. SILENT: it has not, and the group never tells.
COMMIT, ROLLBACK, SILENT = "COMMIT", "ROLLBACK", "SILENT"

_JOURNAL = """
CREATE TABLE IF NOT EXISTS ends (transaction_id TEXT PRIMARY KEY, end TEXT NOT NULL, why TEXT);
CREATE TABLE IF NOT EXISTS messages (
    key TEXT PRIMARY KEY, transaction_id TEXT NOT NULL, topic TEXT NOT NULL, body BLOB NOT NULL,
    queue_id INTEGER);
"""
_SEEN = """
CREATE TABLE IF NOT EXISTS seen (
    topic TEXT, queue_id INTEGER, queue_offset INTEGER, key TEXT, body BLOB,
    times INTEGER NOT NULL, PRIMARY KEY (topic, queue_id, queue_offset, key));
"""


@dataclass(frozen=True)
class Sent:
    """A message of a local transaction. `key` is its own, whatever becomes of it."""

    key: str
    topic: str
    body: bytes
    queue_id: int | None


@contextmanager
def transaction_on(path: Path) -> Iterator[sqlite3.Connection]:
    """A database whose changes are kept all, or, after an error, none."""
    with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


def database_at(path: Path, schema: str) -> None:
    """Makes a database, and the tables that it lacks."""
    with closing(sqlite3.connect(path, timeout=30.0, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(schema)


class Journal:
    """The producers' local transactions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        database_at(path, _JOURNAL)

    def commit(self, transaction_id: str, messages: Iterable[Sent], why: str) -> None:
        """Commits a local transaction: its guard row and its messages, all or nothing.

        Errors: sqlite3.IntegrityError when it was ended meanwhile.
        """
        with transaction_on(self.path) as database:
            database.execute("INSERT INTO ends VALUES (?, ?, ?)", (transaction_id, COMMIT, why))
            database.executemany(
                "INSERT INTO messages VALUES (?, ?, ?, ?, ?)",
                [(m.key, transaction_id, m.topic, m.body, m.queue_id) for m in messages],
            )

    def end_of(self, transaction_id: str, end_if_none: str, why: str) -> str:
        """Returns how a local transaction ended; one that has not is ended so, for ever."""
        with transaction_on(self.path) as database:
            database.execute(
                "INSERT OR IGNORE INTO ends VALUES (?, ?, ?)", (transaction_id, end_if_none, why)
            )
            (end,) = database.execute(
                "SELECT end FROM ends WHERE transaction_id = ?", (transaction_id,)
            ).fetchone()
        return str(end)

    def ends(self) -> dict[str, tuple[str, str]]:
        """Returns (end, why) of every local transaction."""
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            rows = database.execute("SELECT transaction_id, end, why FROM ends").fetchall()
        return {transaction_id: (end, why) for transaction_id, end, why in rows}

    def committed(self) -> dict[str, tuple[str, Sent]]:
        """Returns (transaction id, message) of every committed message, by its key."""
        query = "SELECT key, transaction_id, topic, body, queue_id FROM messages"
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            rows = database.execute(query).fetchall()
        return {row[0]: (row[1], Sent(row[0], row[2], row[3], row[4])) for row in rows}


class Seen:
    """What the consumer saw, and how often."""

    def __init__(self, path: Path) -> None:
        self.path = path
        database_at(path, _SEEN)

    def add(self, messages: Iterable[ConsumedMessage]) -> None:
        """Writes down messages that poll() gave; all or none."""
        with transaction_on(self.path) as database:
            database.executemany(
                "INSERT INTO seen VALUES (?, ?, ?, ?, ?, 1)"
                " ON CONFLICT DO UPDATE SET times = times + 1",
                [(m.topic, m.queue_id, m.queue_offset, m.keys, m.body) for m in messages],
            )

    def count(self) -> int:
        """Returns the number of places seen."""
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            return int(database.execute("SELECT count(*) FROM seen").fetchone()[0])

    def rows(self) -> list[tuple[str, int, int, str, bytes, int]]:
        """Returns (topic, queue, queue offset, key, body, times) of all that was seen."""
        with closing(sqlite3.connect(self.path, timeout=30.0)) as database:
            return database.execute("SELECT * FROM seen ORDER BY 1, 2, 3").fetchall()
