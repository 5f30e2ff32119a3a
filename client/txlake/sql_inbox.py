"""A table of handled messages in your own database: each message changes it exactly once.

    inbox = SqlInbox(engine, "points")

    with Consumer("lake", "points", ["orders"]) as consumer:
        while messages := consumer.poll():
            with inbox.begin(messages) as (db, new):
                for message in new:
                    db.execute(...)
            consumer.commit()

The messages' identities and what you make of them are one transaction of the database. What comes
again after a crash is not new. It needs the extra `sqlalchemy`.
Source: docs/sdk.md "Exactly once in a database".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

try:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql, sqlite
except ModuleNotFoundError as error:
    raise ImportError(
        "SqlInbox needs sqlalchemy: install txlake with its extra, txlake[sqlalchemy]; in a clone: "
        "pip install './client[sqlalchemy]'"
    ) from error

from txlake import protocol

TABLE: Final = "txlake_inbox"
_INSERTS: Final[dict[str, Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Identified(Protocol):
    """A message with its identity: a ConsumedMessage, or one that you make of a Kafka record."""

    @property
    def topic(self) -> str:
        """Returns the real topic."""

    @property
    def id(self) -> str:
        """Returns the place of its record, which a topic has once: `half:2-17`."""


M = TypeVar("M", bound=Identified)


class SqlInbox:
    """The messages that a consumer group has handled, in a table of an SQL database.

    Works on PostgreSQL and SQLite. It makes its table, `txlake_inbox`, if that is not there;
    several groups can share one.
    Errors: ValueError for a group's name that is not allowed, or another database; TypeError for
    what is no engine of SQLAlchemy, such as a URL or an engine for asyncio.
    """

    def __init__(self, engine: sa.Engine, group: str, *, table: str = TABLE) -> None:
        if not protocol.matches(protocol.GROUP_PATTERN, group):
            raise ValueError(f"group {group!r}: {protocol.GROUP_PATTERN}")
        argument: object = engine
        if not isinstance(argument, sa.Engine):
            kind = f"{type(argument).__module__}.{type(argument).__qualname__}"
            raise TypeError(f"engine: sqlalchemy.create_engine makes one, and this is a {kind}")
        if engine.dialect.name not in _INSERTS:
            raise ValueError(f"{engine.dialect.name}: {', '.join(sorted(_INSERTS))} are supported")

        self._engine = engine
        self._group = group
        self._insert = _INSERTS[engine.dialect.name]
        self._table = sa.Table(
            table,
            sa.MetaData(),
            sa.Column("consumer_group", sa.Text, primary_key=True),
            sa.Column("topic", sa.Text, primary_key=True),
            sa.Column("message_id", sa.Text, primary_key=True),
            sa.Column("handled_at", sa.DateTime(timezone=True), nullable=False),
        )
        with engine.begin() as db:
            db.execute(sa.schema.CreateTable(self._table, if_not_exists=True))

    @contextmanager
    def begin(self, messages: Sequence[M]) -> Iterator[tuple[sa.Connection, list[M]]]:
        """Begins a transaction of the database; commits at the end of the block.

        Yields the connection, and those of the messages that were not handled before, in their
        order. Whoever handles the same message meanwhile waits until this transaction has ended.
        An exception in the block rolls all back: the messages are new the next time.
        """
        with self._engine.begin() as db:
            yield db, self.take(db, messages)

    def take(self, db: sa.Connection, messages: Sequence[M]) -> list[M]:
        """Notes messages in a transaction of your own. Output: those that were not there."""
        by_key = {(message.topic, message.id): message for message in messages}
        if not by_key:
            return []

        now = dt.datetime.now(dt.timezone.utc)
        rows = [
            {
                "consumer_group": self._group,
                "topic": topic,
                "message_id": message_id,
                "handled_at": now,
            }
            for topic, message_id in sorted(by_key)  # in one order, so that two never deadlock
        ]

        columns = self._table.c
        insert = self._insert(self._table).on_conflict_do_nothing()
        added = db.execute(insert.returning(columns.topic, columns.message_id), rows).all()
        new = {(topic, message_id) for topic, message_id in added}

        return [message for key, message in by_key.items() if key in new]

    def forget(self, older_than: dt.timedelta) -> int:
        """Deletes what was handled so long ago that it cannot come again. Output: how many rows.

        That is longer than the topics keep their messages: a group that begins anew, or seeks,
        reads all that they have.
        """
        before = dt.datetime.now(dt.timezone.utc) - older_than
        columns = self._table.c
        is_old = (columns.consumer_group == self._group) & (columns.handled_at < before)

        with self._engine.begin() as db:
            return db.execute(sa.delete(self._table).where(is_old)).rowcount
