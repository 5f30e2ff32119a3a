"""A start on a store that does not answer: it waits, and goes on when the store is back.

What each write of a start leaves when its answer is lost is one version, as with an answer.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.job.driver import Driver
from pipelines.job.outage import OutageBackoff
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from pipelines.settings import Settings
from storage.errors import StoreAwayError, StoreRefusedError
from storage.files.location import LakeLocation, lake_location
from storage.lake.lake import Lake
from storage.schemas import TABLES
from tests.support.fault_proxy import FaultProxy, Running
from tests.support.faults import LOG, CutBefore, Fault, LostAnswer, Status
from tests.support.job import settings_for
from tests.support.owned_rows import NOW
from tests.support.processes import Process
from tests.support.standby_processes import ACTIVE, Drivers, drivers_of
from tests.support.store import Bucket, make_bucket
from tests.support.wait import DEADLINE_S, wait_until

AWAY = "is away, for"
TRIES = 12  # of a request: delta-rs makes eleven before it gives up
FIRST, SECOND = r"/_delta_log/0{20}\.json$", r"/_delta_log/0{19}1\.json$"


@pytest.fixture
def bucket(store: Store, proxy: FaultProxy, unique: Callable[[str], str]) -> Bucket:
    """A bucket behind the proxy."""
    return dataclasses.replace(make_bucket(store, unique("start")), endpoint=proxy.endpoint)


@pytest.fixture
def location(bucket: Bucket) -> LakeLocation:
    return lake_location(f"{bucket.uri}/lake", bucket.options)


def settings_on(bucket: Bucket, broker: Broker) -> Settings:
    settings = settings_for(broker, Path("lake"), bucket.name)
    lake = dataclasses.replace(settings.lake, path=f"{bucket.uri}/lake", store=bucket.options)
    return dataclasses.replace(settings, lake=lake)


def lost(key: str, times: int = 1, every: int = 1) -> Fault:
    """Returns the loss of answers about entries of logs."""
    return Fault(LostAnswer(), "PUT", LOG, key, every, times)


# Some writes of a start. delta-rs would follow a first entry that is lost with a second one.
LOST = {
    "the probe's table": [lost(rf"_probe-\w+{FIRST}"), lost(rf"_probe-\w+{SECOND}")],
    "the probe's race": [lost(rf"_probe-\w+{SECOND}", times=6)],
    "a table": [lost(f"/half{FIRST}")],
    "the row": [lost(f"/lake{SECOND}", times=2)],
    "each other write": [lost("", times=12, every=2)],
}


@pytest.mark.parametrize("of", LOST)
def test_writes_of_a_start_whose_answers_are_lost_are_made_once(
    location: LakeLocation, proxy: FaultProxy, bucket: Bucket, of: str
) -> None:
    lake = Lake(location, is_driver=True)
    away = OutageBackoff("Kafka", "the store", threading.Event())

    happening = [proxy.add(fault) for fault in LOST[of]]
    try:
        assert away.until_done(lake.check)
        assert away.until_done(lambda: lake.create(NOW))
    finally:
        for fault in happening:
            proxy.remove(fault)

    assert all(fault.hits > 0 for fault in happening)
    versions = {table: Lake(location).handle(table).version() for table in TABLES}
    assert versions == {table: int(table == "lake") for table in TABLES}
    assert not list(bucket.folder.rglob("_probe-*/*")), "the probe is deleted"


@pytest.mark.parametrize("what", [Status(), CutBefore()], ids=["503", "resets"])
def test_a_probe_that_no_writer_gets_through_is_tried_again(
    location: LakeLocation, proxy: FaultProxy, what: Status | CutBefore
) -> None:
    lake = Lake(location)
    with (
        proxy.fault(Fault(what, "PUT", LOG, rf"_probe-\w+{SECOND}")),
        pytest.raises(StoreAwayError, match=r"^the store of the lake s3://\S+ does not answer \("),
    ):
        lake.check()
    lake.check()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "another"}, "its store refuses access (403 Forbidden)"),
        ({"AWS_ALLOW_HTTP": "false"}, "its endpoint is http://"),
        ({}, "its store has no such bucket: make it"),
    ],
)
def test_a_start_does_not_wait_for_a_store_that_refuses(
    bucket: Bucket, broker: Broker, changed: dict[str, str], sentence: str
) -> None:
    settings = settings_on(bucket, broker)
    path = settings.lake.path if changed else "s3://no-such-bucket/lake"
    lake = dataclasses.replace(settings.lake, path=path, store={**bucket.options, **changed})
    with pytest.raises(StoreRefusedError) as caught:
        Driver(dataclasses.replace(settings, lake=lake)).run()
    assert str(caught.value).startswith(f"the lake {path}: {sentence}")


@pytest.fixture
def drivers(bucket: Bucket, broker: Broker, tmp_path: Path) -> Iterator[Drivers]:
    with drivers_of(settings_on(bucket, broker), tmp_path, bucket.settings_of(tmp_path)) as running:
        yield running


def test_a_start_that_waits_for_its_store_ends_well_when_it_is_stopped(
    drivers: Drivers, proxy: FaultProxy
) -> None:
    with proxy.away():
        starting = drivers.wait_for(AWAY, drivers.start())
        starting.signal(signal.SIGTERM)
        assert starting.wait(DEADLINE_S) == 0
    require_sentences(starting)


def test_a_start_waits_for_its_store_wherever_it_stands(
    drivers: Drivers, proxy: FaultProxy
) -> None:
    """First nothing is answered, then what is written, then a commit of an epoch."""
    refused = [proxy.add(fault) for fault in (Fault(Status(), every=2), Fault(CutBefore()))]
    unanswered = proxy.add(Fault(LostAnswer(), "PUT", LOG))
    starting = drivers.wait_for(AWAY, drivers.start())
    for fault in refused:
        assert fault.hits > 0
        proxy.remove(fault)
    wait_for_hits(unanswered, starting)
    proxy.remove(unanswered)
    drivers.wait_for(ACTIVE, starting)

    drivers.send("before")
    drivers.wait_for_sent()
    with proxy.fault(Fault(Status(), "PUT", LOG, "/half/_delta_log/")):
        drivers.send("planned, and not committed")
        wait_until(lambda: starting.has_said(ACTIVE, AWAY), "the store is away again")
        starting.kill()
        again = drivers.wait_for(AWAY, drivers.start())
    drivers.wait_for(ACTIVE, again)
    drivers.wait_for("is back after", again)
    assert again.has_said("which an earlier run had planned")
    drivers.wait_for_sent()
    drivers.check()

    again.signal(signal.SIGTERM)
    assert again.wait(DEADLINE_S) == 0
    for process in (starting, again):
        require_sentences(process)


def wait_for_hits(fault: Running, process: Process) -> None:
    """Waits until some tries have met a fault."""

    def look() -> bool:
        assert process.code is None, process.log.read_text()
        return fault.hits > TRIES

    wait_until(look, "the fault happens", seen=process.log.read_text)


def require_sentences(process: Process) -> None:
    """Checks that a driver has said of its store what a reader understands."""
    said = process.log.read_text()
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if AWAY in line]
    assert all("the store of s3://" in line and "does not answer (" in line for line in lines)
