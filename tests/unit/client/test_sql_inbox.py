"""Each message changes a database once: on SQLite and on a real PostgreSQL, under kill -9."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import sqlalchemy as sa

from tests.support.inbox_service import EFFECTS
from tests.support.lake_factory import LakeFactory
from tests.support.postgres import postgres
from tests.support.wait import wait_until
from txlake.sql_inbox import TABLE, SqlInbox

ROOT = Path(__file__).parents[3]
POINTS = ("in the transaction", "after the transaction", "after the commit")


class Sent(NamedTuple):
    """A message with an identity."""

    topic: str
    id: str


ONE, TWO, OTHER = Sent("orders", "half:0-1"), Sent("orders", "half:0-2"), Sent("bills", "half:0-1")


@contextmanager
def sqlite(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'points.sqlite'}"


@contextmanager
def postgresql(_folder: Path) -> Iterator[str]:
    with postgres() as dsn:
        folder, user, database = (part.partition("=")[2] for part in dsn.split())
        yield f"postgresql+psycopg://{user}@/{database}?host={folder}"


@pytest.fixture(params=[sqlite, postgresql], ids=["sqlite", "postgresql"], scope="module")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with request.param(tmp_path_factory.mktemp("inbox")) as url:
        yield url


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(url)
    yield engine
    with engine.begin() as db:
        for table in (TABLE, EFFECTS.name):
            db.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()


def handle(inbox: SqlInbox, *messages: Sent) -> list[Sent]:
    with inbox.begin(messages) as (_, new):
        return new


def test_a_message_is_new_once_for_each_group_and_topic(engine: sa.Engine) -> None:
    inbox = SqlInbox(engine, "points")
    assert handle(inbox, TWO, ONE) == [TWO, ONE]
    assert handle(inbox, ONE, OTHER, TWO) == [OTHER]
    assert handle(inbox) == []
    assert handle(SqlInbox(engine, "bonus"), ONE) == [ONE]

    many = [Sent("orders", f"half:1-{number}") for number in range(5_000)]
    assert handle(inbox, *many[:3_000]) == many[:3_000]
    assert handle(inbox, *many) == many[3_000:]


def test_what_fails_is_new_the_next_time(engine: sa.Engine) -> None:
    inbox = SqlInbox(engine, "points")
    with pytest.raises(OSError, match="no card"), inbox.begin([ONE, TWO]) as (_, new):
        assert new == [ONE, TWO]
        raise OSError("no card")
    assert handle(inbox, ONE) == [ONE]


def test_only_what_is_old_is_forgotten(engine: sa.Engine) -> None:
    inbox, bonus = SqlInbox(engine, "points"), SqlInbox(engine, "bonus")
    handle(inbox, ONE, TWO)
    handle(bonus, ONE)

    assert inbox.forget(dt.timedelta(hours=1)) == 0
    assert inbox.forget(dt.timedelta(0)) == 2
    assert handle(inbox, ONE) == [ONE]
    assert handle(bonus, ONE) == []


# SQLite has one writer at a time.
@pytest.mark.parametrize("url", [postgresql], ids=["postgresql"], indirect=True)
def test_two_that_handle_one_message_wait_for_each_other(engine: sa.Engine) -> None:
    first, second = SqlInbox(engine, "points"), SqlInbox(engine, "points")

    with ThreadPoolExecutor(1) as threads:
        with first.begin([ONE, TWO]) as (_, new):
            assert new == [ONE, TWO]
            late = threads.submit(handle, second, TWO, ONE, OTHER)
            wait_until(lambda: waits_for_a_lock(engine), "the second one waits")
            assert not late.done()
        assert late.result() == [OTHER]


def waits_for_a_lock(engine: sa.Engine) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with engine.begin() as db:
        return bool(db.execute(sa.text(query)).scalar_one())


def test_kill_9_anywhere_loses_no_effect_and_doubles_none(
    engine: sa.Engine, url: str, tmp_path: Path
) -> None:
    lake = LakeFactory(tmp_path / "lake")
    lake.make_topic("orders", 2)
    rows = [
        lake.row(queue_id, offset, half_queue_offset=queue_id * 1_000 + offset)
        for queue_id in (0, 1)
        for offset in range(60)
    ]
    lake.write_rows("orders", rows)
    command = [sys.executable, "-m", "tests.support.inbox_service", url, str(lake.path), "120"]

    for point in (*POINTS, *POINTS):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            while service.stdout.readline().strip() != point:
                assert service.poll() is None
            service.kill()

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")

    with engine.begin() as db:
        bodies = list(db.execute(sa.select(EFFECTS.c.body)).scalars())
    assert len(bodies) == len(set(bodies)) == 120
    assert set(bodies) == {row["body"].decode() for row in rows}


def test_another_database_and_a_wrong_group_are_refused(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/x.sqlite")
    with pytest.raises(ValueError, match="group 'a b'"):
        SqlInbox(engine, "a b")
    with pytest.raises(ValueError, match="group None: "):
        SqlInbox(engine, None)  # type: ignore[arg-type]

    driver = SimpleNamespace(paramstyle="format")  # none for MySQL is installed
    other = sa.create_engine("mysql+pymysql://", module=driver)
    with pytest.raises(ValueError, match="mysql: postgresql, sqlite are supported"):
        SqlInbox(other, "points")

    with pytest.raises(TypeError, match=r"create_engine makes one, and this is a builtins\.str"):
        SqlInbox(str(engine.url), "points")  # type: ignore[arg-type]
