"""The wheels of the job and of the SDK, and what the job's needs beside them.

    python -m release.wheels --into dist

`requirements.txt` has the job's packages at the locked versions, with the hashes of their files;
`requirements-build.txt` what builds those of them that come as source (pyspark does).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click
from packaging.utils import canonicalize_name

from release.locks import ROOT, needed_packages

_HEADING: Final = """\
# The packages of the job, locked. Written by `make dist`.
#
#   pip install --require-hashes -r requirements-build.txt
#   pip install --require-hashes --no-build-isolation --use-pep517 -r requirements.txt
#   pip install --no-deps txlake-*.whl txlake_pipelines-*.whl
"""
_PIN: Final = re.compile(r"^([\w.-]+)==")


def build_wheels(into: Path) -> list[Path]:
    """Returns the two wheels, which it builds into an empty folder."""
    into.mkdir(parents=True, exist_ok=True)
    for path in into.glob("*.whl"):
        path.unlink()

    for source in (ROOT / "client", ROOT):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{source} is not built:\n{done.stderr}")
    return sorted(into.glob("*.whl"))


def job_requirements() -> str:
    """Returns the part of requirements.lock that the job needs, and no other part."""
    text = (ROOT / "requirements.lock").read_text("utf-8")
    needed = needed_packages()

    entries = re.split(r"(?m)^(?=\S)", text)
    names = (_PIN.match(entry) for entry in entries)
    kept = [
        entry
        for entry, name in zip(entries, names, strict=True)
        if name is not None and canonicalize_name(name[1]) in needed
    ]
    return _HEADING + "".join(kept)


@click.command()
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "dist")
def main(into: Path) -> None:
    """Build the wheels, and write what the job needs beside them."""
    wheels = build_wheels(into.resolve())
    (into / "requirements.txt").write_text(job_requirements(), "utf-8")
    shutil.copy(ROOT / "requirements-build.lock", into / "requirements-build.txt")

    for path in (*wheels, into / "requirements.txt", into / "requirements-build.txt"):
        click.echo(path)


if __name__ == "__main__":
    main()
