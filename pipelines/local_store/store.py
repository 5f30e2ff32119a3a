"""A real S3 server on loopback, S3Proxy on a folder, with one key that may do everything.

It is for trying and testing: a production lake names its own store. Its start and end:
`pipelines/local_server/server.py`. The jars are an optional set: `txlake jars fetch store`.

The caller can give its keys; else they are random, and kept in its folder.

    StoreError    the server did not start, or does not answer; the text has the end of its log
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pipelines.local_server.server import (
    HOST,
    START_TIMEOUT_S,
    LocalServer,
    ServerError,
    property_lines,
)

# S3Proxy checks no region, but clients sign one.
REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


class StoreError(ServerError):
    """The S3 server did not start, or does not answer."""


@dataclass(frozen=True)
class Keys:
    """The keys with which a client signs. The secret is in no print."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


def id_path(folder: Path) -> Path:
    """Returns the file with the id of the key."""
    return folder / "access_key_id"


def secret_path(folder: Path) -> Path:
    """Returns the file with the secret of the key."""
    return folder / "secret_access_key"


def keys_of(folder: Path) -> Keys:
    """Returns the keys of a folder; creates missing ones, in files of their owner alone."""
    identity = id_path(folder)
    secret = secret_path(folder)
    if not (identity.is_file() and secret.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        write_private(identity, secrets.token_hex(10) + "\n")
        write_private(secret, secrets.token_urlsafe(30) + "\n")

    return Keys(identity.read_text("utf-8").strip(), secret.read_text("utf-8").strip())


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(fresh, path)


class Store(LocalServer):
    """An S3 server on loopback, started by `start` or `with`, ended by `stop` or `kill`.

    `data_folder` keeps buckets, keys, settings and log; an old one is used again. `port` 0 means a
    free one, chosen once. `keys`: without them, those of the folder, made at random for a new one.

    Errors: StoreError, JarError, JavaError.
    """

    NAME = "store"
    ERROR = StoreError
    JARS = "store"
    JAVA_OPTIONS = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-Xshare:auto", "-DLOG_LEVEL=warn")

    def __init__(
        self,
        data_folder: Path | str,
        *,
        port: int = 0,
        keys: Keys | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        super().__init__(data_folder, port=port, start_timeout_s=start_timeout_s)
        self._given_keys = keys

    @cached_property
    def keys(self) -> Keys:
        """Returns the keys with which clients sign."""
        return self._given_keys or keys_of(self.data_folder)

    @property
    def endpoint(self) -> str:
        """Returns the URL at which clients connect."""
        return f"http://{HOST}:{self.port}"

    def bucket_folder(self, bucket: str) -> Path:
        """Returns the folder with the objects of a bucket, as files."""
        return self.data_folder / "buckets" / bucket

    def create_bucket(self, bucket: str) -> None:
        """Creates a bucket: S3Proxy serves every folder as one.

        Errors: StoreError if S3 has no bucket of such a name, or the folder cannot be written.
        Replay: an existing bucket stays as it is.
        """
        if not _BUCKET.fullmatch(bucket):
            raise StoreError(
                f"bucket {bucket!r}: 3 to 63 small letters, digits and dashes, no dash at an end"
            )
        self._make_folder(self.bucket_folder(bucket))

    def _prepare(self, java_command: list[str]) -> list[str]:
        (self.data_folder / "buckets").mkdir(parents=True, exist_ok=True)
        settings = {
            "s3proxy.endpoint": self.endpoint,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": self.keys.access_key_id,
            "s3proxy.credential": self.keys.secret_access_key,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(self.data_folder / "buckets"),
        }

        path = self.data_folder / "s3proxy.properties"
        write_private(path, property_lines(settings))
        return [*java_command, "org.gaul.s3proxy.Main", "--properties", str(path)]

    def _probe(self) -> str | None:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5.0)
        try:
            connection.request("GET", "/")
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return str(error)
        finally:
            connection.close()

        # A ready server answers, and refuses requests without a signature.
        return None if status == http.client.FORBIDDEN else f"status {status}"
