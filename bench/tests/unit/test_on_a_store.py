"""What a lake on a store costs: the arithmetic, and where a lake's files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.epoch_times import EpochTime
from bench.figure import MET, MISSED, REACHED
from bench.figures.drain import Drained
from bench.figures.on_a_store import LOCAL, STORE, PlacedDrain, drain_figure, request_figures
from bench.job_process import toml
from bench.lake_store import LakeStore
from bench.requests import Requests, Span, for_each, month_usd, price_usd
from pipelines.local_store.store import Store, keys_of
from pipelines.settings import load, parse

KAFKA = {"bootstrap_servers": "localhost:9092"}


@pytest.mark.parametrize(
    ("requests", "usd"),
    [
        pytest.param({}, 0.0, id="nothing was asked"),
        pytest.param({("PUT", "log"): 1_000}, 0.005, id="a write"),
        pytest.param({("POST", "data"): 1_000}, 0.005, id="a part of a write"),
        pytest.param({("GET", "list"): 1_000}, 0.005, id="a list costs as a write"),
        pytest.param({("GET", "data"): 1_000}, 0.0004, id="a read"),
        pytest.param({("HEAD", "log"): 1_000}, 0.0004, id="a look"),
        pytest.param({("DELETE", "data"): 1_000}, 0.0, id="a deletion is free"),
        pytest.param({("PUT", "data"): 2_000, ("GET", "log"): 500}, 0.0102, id="they add up"),
    ],
)
def test_requests_have_a_price(requests: Requests, usd: float) -> None:
    assert price_usd(requests) == pytest.approx(usd)


def test_a_month_goes_on_like_the_span_that_was_counted() -> None:
    # Ten writes a second for thirty days are 25.92 million: 129.60 USD.
    assert month_usd({("PUT", "log"): 100}, seconds=10) == pytest.approx(129.60)


def test_requests_are_named_by_method_and_kind_most_first() -> None:
    requests = {("PUT", "log"): 3, ("GET", "list"): 30}
    assert list(for_each(requests, 10).items()) == [("GET list", 3.0), ("PUT log", 0.3)]


def test_requests_of_the_job_make_the_figures_and_those_of_a_consumer_stand_beside() -> None:
    loaded = Span(10.0, 10_000, {("PUT", "data"): 100}, {("GET", "log"): 50})
    idle = Span(5.0, 0, {("GET", "log"): 10}, {})

    each, without_input, month = request_figures(loaded, idle, rate=1_000)

    assert each.value == 0.01
    assert each.details["of_the_job"] == {"PUT data": 0.01}
    assert each.details["of_a_consumer_a_second"] == {"GET log": 5.0}
    assert without_input.value == 2.0
    assert month.value == pytest.approx(129.60)
    assert month.details["of_a_consumer"] == 5.18


@pytest.mark.parametrize(
    ("store_s", "verdict"),
    [(10.0, REACHED), (12.5, REACHED), (12.6, MET), (20.0, MET), (20.1, MISSED)],
)
def test_a_drain_on_a_store_is_judged_by_its_ratio(store_s: float, verdict: str) -> None:
    drains = {LOCAL: [_drain(10.0)] * 3, STORE: [_drain(1.0), _drain(store_s), _drain(90.0)]}
    figure = drain_figure(drains)
    assert figure.value == 10.0 / store_s, "the median of the rounds"
    assert figure.verdict == verdict
    assert figure.details[STORE]["servers_us_a_transaction"] == [2_000.0] * 3


def _drain(seconds: float) -> PlacedDrain:
    epoch = EpochTime(1, 0.0, 0.1, seconds, 1_020, 1_000, {}, {})
    return PlacedDrain(Drained([epoch], 2.0, 1.0, 10**9), server_s=2.0)


def test_the_settings_of_a_lake_on_a_store_name_its_keys_by_file_alone(tmp_path: Path) -> None:
    store = LakeStore(Store(tmp_path / "store"), "http://127.0.0.1:1")
    keys = keys_of(tmp_path / "store")
    conf = tmp_path / "job.toml"
    conf.write_text(toml({"lake": store.section("orders"), "kafka": KAFKA}))

    assert keys.secret_access_key not in conf.read_text()
    location = load(conf).lake.location()
    expected = parse({"lake": store.section("orders"), "kafka": KAFKA}, "here")
    assert location == expected.lake.location()
    assert location.options["secret_access_key"] == keys.secret_access_key
    assert location.options["endpoint"] == "http://127.0.0.1:1"
    assert location.options["allow_http"] == "true"
    assert store.folder(location.path) == store.server.bucket_folder("lakes") / "orders"
