"""A job that Kafka has let in once: it is refused, says so in a line, and goes on when it may.

Its start is in test_connections.py and test_rights.py.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.settings import Settings
from tests.kafka.test_connections import settings_of as secure_settings
from tests.kafka.test_rights import printed
from tests.kafka.test_rights import settings_of as settings_of_user
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.rights_broker import RightsBroker
from tests.support.secure_broker import PASSWORD, SecureBroker, secure_broker
from tests.support.transactions import commit, wait_for_bodies
from tests.support.wait import wait_until

Unique = Callable[[str], str]
REFUSES, AGAIN = "refuses this job, for ", "lets this job in again after "
BACK = "is back after "
_REAUTH_MS = 2_000
_USER = "txlake-job"
pytestmark = pytest.mark.usefixtures("spark")  # the job uses the run's one session


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path_factory.mktemp("secure"), _REAUTH_MS) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RightsBroker]:
    with RightsBroker(tmp_path_factory.mktemp("rights"), [_USER]) as started:
        yield started


def is_refused_and_goes_on(
    settings: Settings,
    wire: KafkaWriter,
    caplog: pytest.LogCaptureFixture,
    refuse: Callable[[], None],
    let_in: Callable[[], None],
) -> Job:
    """Run a job that is refused for a while, and return it. What was sent meanwhile is there."""
    caplog.set_level(logging.WARNING, "txlake.driver")

    def said(words: str) -> list[str]:
        return [text for text in caplog.messages if words in text]

    with running(settings) as job:
        commit(wire, "before")
        wait_for_bodies(job, "before")
        refuse()
        try:
            wait_until(lambda: said(REFUSES), "the job says so", seen=lambda: caplog.messages)
            commit(wire, "meanwhile")
            waiting = wire.half("waiting", body=b"waiting")
        finally:
            let_in()
        wait_for_bodies(job, "before", "meanwhile")
        wire.end("COMMIT", waiting)
        wait_for_bodies(job, "before", "meanwhile", "waiting")
    outages = [text for text in caplog.messages if " so far; trying again in " in text]
    (recovery,) = said(AGAIN) + said(BACK)
    assert (AGAIN in recovery) == (REFUSES in outages[-1]), caplog.messages
    # One line for each kind of outage, as a busy broker gives no answer for a while, and a minute.
    for before, after in itertools.pairwise(outages):
        kind, _, so_far = after.partition(", for ")
        is_new = not before.startswith(f"{kind}, for ")
        assert is_new or int(so_far.split()[0]) >= 60, caplog.messages
    assert not any("\n" in text for text in caplog.messages)
    assert len(job.rows("half")) == 3
    return job


def test_a_job_whose_password_is_changed_says_so_and_goes_on_with_the_right_one(
    secure: SecureBroker, tmp_path: Path, unique: Unique, caplog: pytest.LogCaptureFixture
) -> None:
    name = unique("password")
    way = "SCRAM_SHA_512", secure.client("SCRAM_SHA_512")
    settings = secure_settings(secure, way, tmp_path, name)
    wire = KafkaWriter(
        settings_for(secure, tmp_path / "lake", name)
    )  # by the listener that asks nobody
    is_refused_and_goes_on(
        settings, wire, caplog, lambda: secure.add_user("another"), secure.add_user
    )
    assert PASSWORD not in caplog.text


# what is taken away -> the words that name it
TAKEN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "half": lambda row: row["name"].endswith("-half"),
    "admin": lambda row: row["name"].endswith("-admin"),
    "group": lambda row: row["kind"] == "group",
}


@pytest.mark.parametrize("what", list(TAKEN))
def test_a_job_whose_right_is_taken_away_says_so_and_goes_on_when_it_has_it_again(
    guarded: RightsBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    name, lake = f"taken-{what}", tmp_path / "lake"
    rows = printed(guarded, lake, "--role", "job", name=name)
    guarded.give(rows)
    settings = settings_of_user(guarded, lake, _USER, name)
    wire = KafkaWriter(settings_for(guarded, lake, name))
    taken = [row for row in rows if TAKEN[what](row)]
    assert taken
    is_refused_and_goes_on(
        settings, wire, caplog, lambda: guarded.take(taken), lambda: guarded.give(taken)
    )
