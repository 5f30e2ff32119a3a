"""A real S3 server for tests: one a process, and a bucket for each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipelines.jvm.jars import fetch_command, is_fetched
from pipelines.local_store.store import REGION, Keys, Store


@dataclass(frozen=True)
class Bucket:
    """A bucket, and how to get at it.

    Input: `endpoint`: the server's, or that of a proxy before it; `folder`: its objects as files.
    """

    name: str
    endpoint: str
    keys: Keys
    folder: Path = field(repr=False)

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        """Returns the storage options of delta-rs."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.keys.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret_access_key,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }

    def settings_of(self, folder: Path) -> dict[str, str]:
        """Returns the section `[lake.store]`. Writes the secret key into a file of a folder."""
        secret = folder / "secret"
        secret.write_text(self.keys.secret_access_key)
        return {
            "endpoint": self.endpoint,
            "region": REGION,
            "allow_http": "true",
            "access_key_id": self.keys.access_key_id,
            "secret_access_key_file": str(secret),
        }


def need(jar_set: str) -> None:
    """Skips a test whose jars are not in the cache; in CI they have to be there."""
    in_ci = os.environ.get("TXLAKE_CI") or os.environ.get("CI")
    if not in_ci and not is_fetched(jar_set):
        pytest.skip(f"its jars are not in the cache: `{fetch_command(jar_set)}` fetches them")


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Run one S3 server for all tests of a process; a test that ends one starts its own."""
    need("store")
    with Store(tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def bucket(store: Store, unique: Callable[[str], str]) -> Bucket:
    """A bucket that no other test uses."""
    return make_bucket(store, unique("bucket"))


def make_bucket(store: Store, name: str) -> Bucket:
    """Creates a bucket."""
    store.create_bucket(name)
    return Bucket(name, store.endpoint, store.keys, store.bucket_folder(name))
