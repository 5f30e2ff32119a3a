"""A publisher of a lake in a store: it reads there, and waits where the store is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from pipelines.settings import Settings, parse
from tests.support.fault_proxy import FaultProxy
from tests.support.publishers import PublishedLake, PublisherThread
from tests.support.store import Bucket, make_bucket

Unique = Callable[[str], str]


def settings_of(lake: PublishedLake, bucket: Bucket, folder: Path) -> Settings:
    values = lake.values()
    values["lake"] = {"path": f"{bucket.uri}/lake", "store": bucket.settings_of(folder)}
    return parse(values, "test")


def test_a_lake_on_a_store_is_published_and_a_store_that_is_away_is_waited_for(
    broker: Broker,
    store: Store,
    proxy: FaultProxy,
    tmp_path: Path,
    unique: Unique,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = unique("published")
    bucket = replace(make_bucket(store, name), endpoint=proxy.endpoint)
    # The store's objects are files: a lake that is written there is in the store.
    lake = PublishedLake(bucket.folder / "lake", broker.bootstrap_servers, name)
    lake.send({"body": b"one", "real_queue_id": 1}, {"body": b"two", "real_queue_id": 2})
    settings = settings_of(lake, bucket, tmp_path)

    def count() -> int:
        try:
            return len(lake.consume())
        except KeyError:  # the topic is not there yet
            return -1

    with PublisherThread(settings) as publisher:
        publisher.wait_until(lambda: count() == 2, "two are published", seen=count)
        caplog.set_level(logging.INFO, "txlake.publish")
        with proxy.away():
            lake.send_set({"body": b"three"}, {"body": b"four"})
            publisher.wait_until(lambda: "tries again" in caplog.text, "it says that it waits")
            assert publisher.is_running() and count() == 2
        publisher.wait_until(lambda: count() == 4, "the others are published", seen=count)
        assert "goes on after" in caplog.text
    lake.require_published()
