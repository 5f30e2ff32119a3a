"""An S3 server of this machine that lakes are in, for the benchmark and for chaos runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.local_store.store import REGION, Store, id_path, secret_path

_BUCKET = "lakes"


@dataclass(frozen=True)
class LakeStore:
    """A running server with a bucket. `endpoint`: the server's, or that of a proxy before it."""

    server: Store
    endpoint: str

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

    def folder(self, path: str) -> Path:
        """Returns where the server has the files of a lake. Input: the lake's URI."""
        return self.server.bucket_folder(_BUCKET) / path.removeprefix(f"s3://{_BUCKET}/")


@contextlib.contextmanager
def lake_store(folder: Path) -> Iterator[LakeStore]:
    """Runs a server. Errors: JarError without its jars, which are fetched only when asked for."""
    with Store(folder) as server:
        server.create_bucket(_BUCKET)
        yield LakeStore(server, server.endpoint)
