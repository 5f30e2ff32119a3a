"""A lake on a real S3 server is measured; what was measured here says nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.figures.latency import latencies
from bench.figures.on_a_store import request_figures
from bench.lake_store import LakeStore
from bench.requests import counted
from bench.sizes import TINY
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store

pytestmark = pytest.mark.soak


def test_latency_and_requests_are_those_of_a_lake_on_a_store(
    broker: Broker, store: Store, tmp_path: Path
) -> None:
    quick = dataclasses.replace(TINY, warm_up_s=0.0, latency_s=2.0, idle_s=1.0, rate=200)
    store.create_bucket("lakes")
    in_store = LakeStore(store, store.endpoint)
    bench = Workbench(quick, tmp_path, broker, lambda text: None, store=in_store)

    timed = latencies(bench, quick.rate, 256)
    loaded, idle = counted(bench, in_store)

    assert timed.run.sent > 0
    assert min(timed.seconds()) > 0
    assert not (tmp_path / "lakes").exists(), "the lake is on the store alone"
    assert loaded.transactions > 0
    assert {("PUT", "data"), ("PUT", "log")} <= set(loaded.job)
    assert ("GET", "log") in loaded.consumer
    each, _, month = request_figures(loaded, idle, quick.rate)
    assert each.value is not None and month.value is not None
    assert 0 < each.value < 100
    assert month.value > 0
