"""Advisories about the locked Python packages, by pip-audit; and where none can be had, what to do.

    python -m release.audit
    python -m release.audit --osv-url http://mirror.example/v1/query

Exit code 1 if an advisory is about a package of a lock file. Where no index of advisories answers,
it says so and prints the check by hand: nothing was audited then, and the exit code is 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from release.locks import Package, packages

# Advisories that were read and do not concern us: id -> why.
ACCEPTED: Final[dict[str, str]] = {}
BY_HAND: Final = """\
To do by hand (docs/SECURITY.md, "What a release is made of"):
  1. make sbom: it writes build/txlake.cdx.json
  2. give that file to a scanner that has an index, on a machine where it can ask one
  3. it has to look at the packages, at the jars, and at the jars below pyspark"""
_TIMEOUT_S = 30
_LIMIT_S = 900


@dataclass(frozen=True)
class Index:
    """An index of advisories, as pip-audit is told of it."""

    name: str
    options: tuple[str, ...]


INDEXES: Final = (Index("pypi", ("-s", "pypi")), Index("osv", ("-s", "osv")))


class NoIndexError(Exception):
    """An index that does not answer."""


def audit(index: Index, pins: Sequence[Package]) -> tuple[list[str], list[str]]:
    """Returns a line for each advisory about packages, and the packages that the index lacks.

    Asks for one package first: an index without advisories answers that it does not know it.
    Errors: NoIndexError.
    """
    _, lacks = _sorted(_asked(index, pins[:1]))
    if lacks:
        raise NoIndexError(f"it does not know {lacks[0]}")
    rounds: list[list[Package]] = []
    seen: Counter[str] = Counter()
    for pin in pins:  # of two versions of a package each is asked for in a round of its own
        if seen[pin.name] == len(rounds):
            rounds.append([])
        rounds[seen[pin.name]].append(pin)
        seen[pin.name] += 1
    return _sorted([row for pinned in rounds for row in _asked(index, pinned)])


def _sorted(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    found = [
        f"{row['name']} {row['version']}: {known['id']}"
        f" (mended in {', '.join(known['fix_versions']) or 'no version'})"
        for row in rows
        for known in row.get("vulns", ())
        if not {known["id"], *known["aliases"]} & ACCEPTED.keys()
    ]
    return found, [row["name"] for row in rows if "skip_reason" in row]


def _asked(index: Index, pins: Sequence[Package]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        file = Path(folder, "pins.txt")
        file.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins), "utf-8")

        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "-r",
            str(file),
            "--no-deps",
            "--disable-pip",
            "--progress-spinner",
            "off",
            "--timeout",
            str(_TIMEOUT_S),
            "--cache-dir",
            folder,
            "-f",
            "json",
            *index.options,
        ]

        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )

    if not done.stdout.strip():
        raise NoIndexError(done.stderr.strip().splitlines()[-1][:100])

    rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    return rows


@click.command()
@click.option("--osv-url", help="Ask a mirror of the OSV index, and no other.")
def main(osv_url: str | None) -> None:
    """Look for advisories about the packages of the lock files."""
    pins = packages()
    indexes: Sequence[Index] = INDEXES
    if osv_url is not None:
        indexes = (Index(osv_url, ("-s", "osv", "--osv-url", osv_url)),)

    reasons = []

    for index in indexes:
        try:
            found, lacks = audit(index, pins)
        except (NoIndexError, subprocess.TimeoutExpired) as error:
            reasons.append(f"{index.name}: {error}")
            continue
        if found:
            raise click.ClickException("\n".join(["advisories:", *found]))

        known = len(pins) - len(lacks)
        click.echo(f"no advisory is about one of {known} packages, by {index.name}")
        if lacks:
            click.echo(f"not audited, since {index.name} lacks them: {', '.join(lacks)}")
        return
    click.echo(f"NOT AUDITED, no index of advisories can be reached ({'; '.join(reasons)})")
    click.echo(BY_HAND)


if __name__ == "__main__":
    main()
