"""An S3 server of this machine that lakes are in, for the benchmark and for chaos runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.local_store.store import REGION, Store, id_path, secret_path
from tests.support.fault_proxy import FaultProxy, Running
from tests.support.faults import Fault, LostAnswer

_BUCKET = "lakes"
_LOST_EVERY = 2  # the client's next try of a write gets its answer


@dataclass(frozen=True)
class LakeStore:
    """A running server with a bucket.

    Input: `endpoint`: the server's, or that of the `proxy` before it, if there is one.
    """

    server: Store
    endpoint: str
    proxy: FaultProxy | None = None

    def section(self, lake: str) -> dict[str, Any]:
        """Returns the section [lake] of a job's settings, for a lake of this name."""
        keys = self.server.data_folder
        return {
            "path": f"s3://{_BUCKET}/{lake}",
            "store": {
                "endpoint": self.endpoint,
                "region": REGION,
                "allow_http": True,
                "access_key_id_file": str(id_path(keys)),
                "secret_access_key_file": str(secret_path(keys)),
            },
        }

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[Running]:
        """Does what it is asked for a while, and loses the answers of every second write."""
        assert self.proxy is not None, "the server has no proxy before it"
        with self.proxy.fault(Fault(LostAnswer(), "PUT", every=_LOST_EVERY)) as running:
            yield running

    def folder(self, path: str) -> Path:
        """Returns where the server has the files of a lake. Input: the lake's URI."""
        return self.server.bucket_folder(_BUCKET) / path.removeprefix(f"s3://{_BUCKET}/")


@contextlib.contextmanager
def lake_store(folder: Path, *, has_proxy: bool = False) -> Iterator[LakeStore]:
    """Runs a server, perhaps behind a proxy that can lose its answers.

    Errors: JarError without its jars, which are fetched only when asked for.
    """
    with Store(folder) as server:
        server.create_bucket(_BUCKET)
        if not has_proxy:
            yield LakeStore(server, server.endpoint)
            return
        with FaultProxy(server.port) as proxy:
            yield LakeStore(server, proxy.endpoint, proxy)
