"""A store without conditional PUT is found at the start, and refused with one sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.local_store.store import Store, write_private
from storage.errors import StoreRefusedError
from storage.files.location import lake_location
from storage.lake.lake import Lake
from storage.lake.store_probe import StoreProbe
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault, Unconditional
from tests.support.store import Bucket, make_bucket, need


class OpenStore(Store):
    """A store that looks at no signature, so that a proxy can change what was signed."""

    def _prepare(self, java_command: list[str]) -> list[str]:
        command = super()._prepare(java_command)
        path = Path(command[-1])
        settings = path.read_text("utf-8")
        assert "authorization=aws-v2-or-v4" in settings
        write_private(path, settings.replace("aws-v2-or-v4", "none"))
        return command

    def _probe(self) -> str | None:
        reply = super()._probe()
        return None if reply == "status 200" else reply


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[FaultProxy, Bucket]]:
    need("store")
    with OpenStore(tmp_path) as store, FaultProxy(store.port) as proxy:
        bucket = make_bucket(store, "probed")
        yield proxy, dataclasses.replace(bucket, endpoint=proxy.endpoint)


def test_a_store_that_lets_several_writers_make_one_version_is_refused(
    proxied: tuple[FaultProxy, Bucket],
) -> None:
    proxy, bucket = proxied
    location = lake_location(f"{bucket.uri}/lake", bucket.options)
    with (
        proxy.fault(Fault(Unconditional(), method="PUT")),
        pytest.raises(
            StoreRefusedError, match=r"^the lake s3://probed/lake: its store let [2-6] of 6 writers"
        ),
    ):
        Lake(location).check()
    StoreProbe(location).require_conditional_put()
    assert list(bucket.folder.rglob("*.json")) == []
