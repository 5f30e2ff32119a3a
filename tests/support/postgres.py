"""A PostgreSQL server of a test: Debian's, in a temporary folder, on a Unix socket alone."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.optional import require

DEBIAN = Path("/usr/lib/postgresql")


def _programs() -> Path | None:
    """Returns the folder with `initdb` and `pg_ctl`, of the newest version."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent

    folders = sorted(DEBIAN.glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    return folders[-1].parent if folders else None


def _user() -> pwd.struct_passwd | None:
    """Returns whom the server runs as: PostgreSQL refuses root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


@contextmanager
def postgres() -> Iterator[str]:
    """Yields the connection string of a new server, which ends with the block.

    Without PostgreSQL on this machine the test is skipped in one line; under CI it fails.
    """
    programs = _programs()
    require(programs is not None, "no PostgreSQL (Debian: postgresql): its guard is not tried")
    assert programs is not None

    user = _user()
    folder = Path(tempfile.mkdtemp(prefix="txlake-postgres-"))
    if user:
        os.chown(folder, user.pw_uid, user.pw_gid)

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [programs / program, "-D", folder / "data", *arguments],
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )

    try:
        run("initdb", "--username=shop", "--auth=trust", "--no-sync", "--encoding=UTF8")
        run(
            "pg_ctl",
            "--wait",
            "--timeout=120",
            f"--log={folder / 'log'}",
            "start",
            "-o",
            f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off",
        )
        try:
            yield f"host={folder} user=shop dbname=postgres"
        finally:
            run("pg_ctl", "--wait", "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder)
