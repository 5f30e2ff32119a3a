"""A consumer that adds each message to a table of its own, once, and says how far it is.

    python -m tests.support.inbox_service DATABASE_URL LAKE COUNT

It ends when the table has COUNT rows. A line is printed within the database's transaction, one
after it, and one after the consumer's commit: a test kills it there.
"""

from __future__ import annotations

import sys

import sqlalchemy as sa

from txlake import Consumer
from txlake.sql_inbox import SqlInbox

EFFECTS = sa.Table(
    "effects", sa.MetaData(), sa.Column("body", sa.Text), sa.Column("offset_", sa.Integer)
)


def main(url: str, lake: str, count: int) -> None:
    """Reads until all messages have had their effect."""
    engine = sa.create_engine(url)
    inbox = SqlInbox(engine, "points")
    with engine.begin() as db:
        db.execute(sa.schema.CreateTable(EFFECTS, if_not_exists=True))

    with Consumer(lake, "points", ["orders"], session_timeout_ms=1_000) as consumer:
        while _count(engine) < count:
            messages = consumer.poll(1.0, max_records=7)

            with inbox.begin(messages) as (db, new):
                for message in new:
                    body = (message.body or b"").decode()
                    db.execute(EFFECTS.insert().values(body=body, offset_=message.queue_offset))
                print("in the transaction", flush=True)

            print("after the transaction", flush=True)
            consumer.commit()
            print("after the commit", flush=True)


def _count(engine: sa.Engine) -> int:
    with engine.begin() as db:
        return db.execute(sa.select(sa.func.count()).select_from(EFFECTS)).scalar_one()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
