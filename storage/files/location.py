"""Where a lake is: a folder of a local disk, or a prefix of an object store.

folder                            a local disk, or a file system that all nodes have mounted
s3://BUCKET/PREFIX                S3, or a store with its protocol and conditional PUT
abfss:// az:// gs:// hdfs://      passed on to delta-rs, not tried
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.fs as pa_fs

from storage.errors import NotALakeError
from txlake._paths import is_in_store, lake_path

_S3 = ("s3://", "s3a://")
# Of a request that Arrow makes; it waits 25 ms, then twice as long each time: 6 s in all. delta-rs
# tries ten times in about 4 s. Arrow's "standard" strategy waits up to 20 s between two tries.
_ATTEMPTS = 8
# delta-rs opens a connection for each entry of a log, all at once, and keeps it for 90 s: tables of
# some hundred entries made 2,300. A process with more than 1,024 open files cannot wait with
# `select`, as Spark's callbacks do. A user's own option goes before it.
_POOL_OPTIONS = {"pool_max_idle_per_host": "4"}


@dataclass(frozen=True)
class LakeLocation:
    """Where a lake is: all that access to its files needs, and small enough to send to a task.

    `options`: delta-rs's storage options, secrets among them: they are in no print.
    """

    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_local(self) -> bool:
        """Returns whether it is a folder."""
        return not is_in_store(self.path)

    def overlaps(self, other: LakeLocation) -> bool:
        """Returns whether one of two places lies in the other, by whatever path."""
        first, second = (place._one_path() for place in (self, other))
        is_inside = first.startswith(second) or second.startswith(first)
        return self.is_local == other.is_local and is_inside

    def _one_path(self) -> str:
        """Returns the path that all ways to a place have in common, with a slash at its end."""
        path = os.path.realpath(self.path) if self.is_local else self.path
        return os.path.join(path.replace("s3a://", "s3://", 1), "")

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Returns the options for delta-rs."""
        return {**_POOL_OPTIONS, **self.options} if is_s3(self) else dict(self.options) or None

    def table_path(self, table: str) -> str:
        """Returns a table's folder; `topics/<table_id>` names a topic's table."""
        return f"{self.path}/{table}" if table else self.path

    def filesystem(self, table: str) -> pa_fs.FileSystem:
        """Returns the file system in which a table's files have the paths that its log gives them.

        For writing, listing and deleting.
        """
        if self.is_local:
            return pa_fs.SubTreeFileSystem(self.table_path(table), pa_fs.LocalFileSystem())
        if is_s3(self):
            folder = self.table_path(table).partition("://")[2]
            return pa_fs.SubTreeFileSystem(folder, _s3(s3_access(self)))
        return self.reading(table)

    def reading(self, table: str) -> pa_fs.FileSystem:
        """Returns a file system of the same paths, for reading.

        On a store it is that of delta-rs. If an answer is cut short over plain HTTP, Arrow's own
        file system returns random bytes of its memory for the rest of the file.
        """
        if self.is_local:
            return self.filesystem(table)

        options = tuple(sorted((self.storage_options or {}).items()))
        root = _delta_filesystem(self.path, options)
        return pa_fs.SubTreeFileSystem(table, root) if table else root


def is_s3(location: LakeLocation) -> bool:
    """Returns whether it is in S3, or in a store with its protocol."""
    return location.path.startswith(_S3)


def lake_location(
    path: str | LakeLocation, options: Mapping[str, str] | None = None
) -> LakeLocation:
    """Returns where a lake is. Errors: NotALakeError for a path that cannot be one."""
    if isinstance(path, LakeLocation):
        return path

    try:
        location = LakeLocation(lake_path(path))
    except ValueError as error:
        raise NotALakeError(f"the lake {error}") from error

    return location if location.is_local else replace(location, options=dict(options or {}))


@dataclass(frozen=True)
class S3Access:
    """How to reach S3. None: as the machine is set up (environment, profile, role)."""

    endpoint: str | None
    region: str | None
    access_key_id: str | None = field(repr=False)
    secret_access_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    is_virtual_hosted: bool


def s3_access(location: LakeLocation) -> S3Access:
    """Returns how to reach S3 by a location's options.

    An endpoint and a region can be in the environment, too, as delta-rs reads them there.
    """
    options = {key.lower().removeprefix("aws_"): value for key, value in location.options.items()}

    def option(*names: str) -> str | None:
        return next(filter(None, map(options.get, names)), None)

    def option_or_variable(*names: str) -> str | None:
        variables = (os.environ.get(f"AWS_{name.upper()}") for name in names)
        return option(*names) or next(filter(None, variables), None)

    return S3Access(
        endpoint=option_or_variable("endpoint", "endpoint_url"),
        region=option_or_variable("region", "default_region"),
        access_key_id=option("access_key_id"),
        secret_access_key=option("secret_access_key"),
        session_token=option("session_token", "token"),
        is_virtual_hosted=options.get("virtual_hosted_style_request", "").lower() == "true",
    )


@functools.lru_cache(maxsize=8)
def _s3(access: S3Access) -> pa_fs.S3FileSystem:
    """Returns S3 in Arrow; a small file is one PUT."""
    options: dict[str, Any] = {
        "access_key": access.access_key_id,
        "secret_key": access.secret_access_key,
        "session_token": access.session_token,
        "region": access.region,
    }
    if access.endpoint is not None:  # Arrow would not take its scheme from the environment
        scheme, separator, host = access.endpoint.rpartition("://")
        options |= {"endpoint_override": host, "scheme": scheme if separator else "https"}

    return pa_fs.S3FileSystem(
        **{key: value for key, value in options.items() if value is not None},
        force_virtual_addressing=access.is_virtual_hosted,
        background_writes=False,
        allow_delayed_open=True,
        retry_strategy=pa_fs.AwsDefaultS3RetryStrategy(max_attempts=_ATTEMPTS),
    )


@functools.lru_cache(maxsize=8)
def _delta_filesystem(path: str, options: tuple[tuple[str, str], ...]) -> pa_fs.FileSystem:
    from deltalake.fs import DeltaStorageHandler

    return pa_fs.PyFileSystem(DeltaStorageHandler(path, dict(options)))
