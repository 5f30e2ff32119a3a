"""Where a lake is: a folder of a local disk, or a prefix of an object store.

    folder                            a local disk, or a file system that all nodes have mounted
    s3://BUCKET/PREFIX                S3, or what speaks its protocol and has conditional PUT
    abfss:// az:// gs:// hdfs://      passed on to delta-rs, not tried
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pa_fs

from storage.errors import NotALakeError

STORES: Final = ("s3", "s3a", "abfss", "abfs", "az", "gs", "hdfs")
_S3 = ("s3://", "s3a://")
# What delta-rs calls each option of S3, without "aws_"; these are in the environment, too.
_ENDPOINT = ("endpoint", "endpoint_url")
_REGION = ("region", "default_region")
_TOKEN = ("session_token", "token")
_ATTEMPTS = 8  # of a request that Arrow makes: delta-rs tries ten times


@dataclass(frozen=True)
class LakePlace:
    """Where a lake is: all that its files need, and small enough to send to a task.

    `options`: delta-rs's storage options, secrets among them: they are in no print.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Returns whether it is a folder."""
        return "://" not in self.path

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Returns the options for delta-rs."""
        return dict(self.options) or None

    def table_path(self, table: str) -> str:
        """Returns a table's folder; `topics/<table_id>` names a topic's table."""
        return f"{self.path}/{table}" if table else self.path

    def filesystem(self, table: str) -> pa_fs.FileSystem:
        """Returns the file system in which a table's files have the paths that its log gives them.

        For writing, listing and deleting.
        """
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.table_path(table), pa_fs.LocalFileSystem())
        if self.path.startswith(_S3):
            below = self.path.partition("://")[2]
            folder = f"{below}/{table}" if table else below
            return pa_fs.SubTreeFileSystem(folder, _s3(tuple(sorted(self.options.items()))))
        return self.reading(table)

    def reading(self, table: str) -> pa_fs.FileSystem:
        """Returns a file system of the same paths, for reading.

        On a store it is that of delta-rs. Where an answer is cut short over plain HTTP, Arrow's own
        takes what happens to be in its memory for the rest of the file.
        """
        if self.is_local:
            return self.filesystem(table)
        whole = _read_by_delta(self.path, tuple(sorted(self.options.items())))
        return pa_fs.SubTreeFileSystem(table, whole) if table else whole


def lake_place(path: str | LakePlace, options: Mapping[str, str] | None = None) -> LakePlace:
    """Returns where a lake is. Errors: NotALakeError for a path that cannot be one."""
    if isinstance(path, LakePlace):
        return path
    scheme, separator, below = path.partition("://")
    if separator:
        return LakePlace(_checked_uri(path, scheme, below), dict(options or {}))
    if not path or "\0" in path:
        raise NotALakeError(f"the lake {path!r}: no folder can have this name")
    folder = Path(path).absolute()
    try:
        above = next((at for at in (folder, *folder.parents) if at.exists()), folder)
        is_file = above.exists() and not above.is_dir()
    except OSError as error:
        raise NotALakeError(f"the lake {folder} cannot be looked at: {error.strerror}") from error
    if is_file:
        raise NotALakeError(f"the lake {folder}: {above} is a file, not a folder")
    return LakePlace(str(folder))


def _checked_uri(path: str, scheme: str, below: str) -> str:
    if scheme not in STORES:
        known = ", ".join(f"{name}://" for name in STORES)
        raise NotALakeError(
            f"the lake {path}: {scheme}:// is not a store that is known; a folder, or one of "
            f"{known} is allowed"
        )
    bucket, *names = below.strip("/").split("/")
    if not bucket or "" in names or {".", ".."} & set(names) or any(map(_is_strange, below)):
        raise NotALakeError(
            f"the lake {path!r}: {scheme}://BUCKET/PREFIX is allowed, without empty names, '.', "
            "'..', '?', '#' and control characters"
        )
    if scheme in ("s3", "s3a") and not names:
        raise NotALakeError(
            f"the lake {path}: name a prefix in the bucket, as in {scheme}://{bucket}/lake"
        )
    return f"{scheme}://{'/'.join((bucket, *names))}"


def _is_strange(letter: str) -> bool:
    return letter in "?#\\%" or not letter.isprintable()


@functools.lru_cache(maxsize=8)
def _s3(options: tuple[tuple[str, str], ...]) -> pa_fs.S3FileSystem:
    """Returns S3 as these options describe it; a small file is one PUT."""
    named = {key.lower().removeprefix("aws_"): value for key, value in options}

    def first(names: tuple[str, ...]) -> str | None:
        """Returns an option; Arrow would not take an endpoint's scheme from the environment."""
        given = [named.get(name) for name in names]
        given += [os.environ.get(f"AWS_{name.upper()}") for name in names]
        return next(filter(None, given), None)

    given: dict[str, Any] = {
        "access_key": named.get("access_key_id"),
        "secret_key": named.get("secret_access_key"),
        "session_token": next((named[name] for name in _TOKEN if named.get(name)), None),
        "region": first(_REGION),
    }
    endpoint = first(_ENDPOINT)
    if endpoint is not None:
        scheme, separator, host = endpoint.rpartition("://")
        given |= {"endpoint_override": host, "scheme": scheme if separator else "https"}
    if named.get("virtual_hosted_style_request", "").lower() == "true":
        given["force_virtual_addressing"] = True
    return pa_fs.S3FileSystem(
        **{key: value for key, value in given.items() if value is not None},
        background_writes=False,
        allow_delayed_open=True,
        retry_strategy=pa_fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


@functools.lru_cache(maxsize=8)
def _read_by_delta(path: str, options: tuple[tuple[str, str], ...]) -> pa_fs.FileSystem:
    from deltalake.fs import DeltaStorageHandler

    return pa_fs.PyFileSystem(DeltaStorageHandler(path, dict(options)))
