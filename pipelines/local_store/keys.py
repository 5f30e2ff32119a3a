"""The keys of the local S3 server: given, or made at random and kept in its folder."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Keys:
    """What a client signs with. The secret is in no print."""

    access_key_id: str
    secret_access_key: str = field(repr=False)


def id_path(folder: Path) -> Path:
    """Returns the file with the id of the key."""
    return folder / "access_key_id"


def secret_path(folder: Path) -> Path:
    """Returns the file with the secret of the key."""
    return folder / "secret_access_key"


def keys_of(folder: Path) -> Keys:
    """Returns the keys of a folder; makes them if it has none, in files of their owner alone."""
    identity, secret = id_path(folder), secret_path(folder)
    if not (identity.is_file() and secret.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        write_private(identity, secrets.token_hex(10) + "\n")
        write_private(secret, secrets.token_urlsafe(30) + "\n")
    return Keys(identity.read_text("utf-8").strip(), secret.read_text("utf-8").strip())


def write_private(path: Path, text: str) -> None:
    """Writes a file that nobody but its owner can read."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    os.replace(fresh, path)
