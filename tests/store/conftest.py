"""What tests of lakes on a store share: a proxy before the server, and a lake behind it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import pytest

from pipelines.local_store.store import Store
from pipelines.replay.rebuild import rebuild
from storage.files.location import lake_location
from tests.support.fault_proxy import FaultProxy
from tests.support.sound_lake import sound_rows
from tests.support.store import Bucket, make_bucket


@pytest.fixture(scope="module")
def proxy(store: Store) -> Iterator[FaultProxy]:
    """Run a proxy before the server for all tests of a module; each takes its faults back."""
    with FaultProxy(store.port) as running:
        yield running


@pytest.fixture(scope="module")
def sound_bucket(
    store: Store, proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory
) -> Bucket:
    """A bucket behind the proxy, with the lake in which everything happens that can."""
    direct = make_bucket(store, f"sound-{time.time_ns()}")
    local = sound_rows().write(tmp_path_factory.mktemp("sound") / "lake").path
    rebuild(local, lake_location(f"{direct.uri}/lake", direct.options))
    return dataclasses.replace(direct, endpoint=proxy.endpoint)
