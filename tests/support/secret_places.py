"""Where secrets of a job's settings could show: its processes, Spark's UI, files."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.cluster import HOST, Cluster
from tests.support.wait import DEADLINE_S


def require_absent(secrets: Sequence[str], found: Mapping[str, bytes]) -> None:
    """Fail if one of the texts has a secret, naming the text; without a text nothing is shown."""
    assert found
    assert all(len(secret) > 8 for secret in secrets)
    shown = [
        (name, number)
        for name, text in found.items()
        for number, secret in enumerate(secrets)
        if secret.encode() in text
    ]
    assert shown == []


def of_processes(driver: int, cluster: Cluster) -> dict[str, bytes]:
    """Return command lines and environments of a driver's processes and of all executors."""
    driving = [psutil.Process(driver), *psutil.Process(driver).children(recursive=True)]
    executors = cluster.executors()
    assert executors
    found = {}
    for one in (*driving, *executors, *cluster.daemons(), *cluster.python_workers()):
        for kind in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended
                found[f"{kind} of {one.pid}"] = Path(f"/proc/{one.pid}/{kind}").read_bytes()
    return found


def of_ui(port: int) -> dict[str, bytes]:
    """Return what Spark's UI says of its one application."""
    root = "/api/v1/applications"
    (application,) = json.loads(_get(port, root))
    parts = ("environment", "jobs", "stages", "sql?details=true&planDescription=true")
    return {part: _get(port, f"{root}/{application['id']}/{part}") for part in parts}


def _get(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    assert answer.status == http.client.OK, (path, text)
    return text


def of_files(*folders: Path) -> dict[str, bytes]:
    """Return the files of folders."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}
