"""What is installed is ours, imports go one way, and no file knows this or that machine."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from checker.frames import RULE_VERSION
from storage.schemas import FORMAT_VERSION
from txlake._lake import FORMAT_VERSION_MAX

ROOT = Path(__file__).parents[3]
# Put together here, so that this file does not name them itself.
HOSTS = [
    ".".join(parts)
    for parts in (
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
    )
]
MACHINE_PATHS = ["/".join(("", "work", "")), "/".join(("..", "shared"))]
GENERATED = {
    ".cache",
    ".git",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv",
    "__pycache__",
    "build",
    "dist",
    "spark-warehouse",
}


def our_files() -> Iterator[Path]:
    """List the files of the clone that were not made by running something."""
    for folder, names, files in os.walk(ROOT):
        names[:] = [n for n in names if n not in GENERATED and not n.startswith("demo-lake")]
        yield from (Path(folder, file) for file in files)


def bytes_of(path: Path) -> bytes:
    """Read a file; nothing of one that is gone, which a process beside this one has made."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.parametrize("name", ["pipelines", "storage", "checker"])
def test_package_is_ours_and_not_one_of_the_same_name(name: str) -> None:
    assert Path(str(importlib.import_module(name).__file__)).parent == ROOT / name


def test_client_is_ours() -> None:
    assert [Path(path) for path in importlib.import_module("txlake").__path__] == [
        ROOT / "client" / "txlake"
    ]


def test_imports_go_one_way() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "blocked"),
    [
        ("txlake", ["pyspark", "py4j", "delta", "pandas", "pipelines", "storage", "checker"]),
        ("pipelines.jvm.jars", ["pyspark", "py4j", "delta", "storage", "checker"]),
    ],
)
def test_package_is_imported_without(package: str, blocked: list[str]) -> None:
    program = f"""
import importlib, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("blocked: " + name, name=name)
sys.meta_path.insert(0, Blocker())
importlib.import_module({package!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_changelog_begins_with_our_version_and_what_it_reads() -> None:
    versions = {
        re.findall(r'^version = "(.+)"', path.read_text("utf-8"), re.MULTILINE)[0]
        for path in (ROOT / "pyproject.toml", ROOT / "client" / "pyproject.toml")
    }
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## \[([\d.]+)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)[0]
    row = re.findall(r"^\| ([\d.]+) \| (\d+) \| (\d+) \| ", changes, re.MULTILINE)[0]

    assert versions == {newest}
    assert row == (newest, str(FORMAT_VERSION), str(RULE_VERSION))
    assert FORMAT_VERSION_MAX == FORMAT_VERSION


def test_lock_holds_the_versions_that_pyproject_names() -> None:
    pinned = set()
    for path in (ROOT / "pyproject.toml", ROOT / "client" / "pyproject.toml"):
        pinned |= set(re.findall(r'"([\w-]+==[\d.]+)"', path.read_text("utf-8")))
    locks = "".join(path.read_text("utf-8") for path in ROOT.glob("requirements*.lock"))
    locked = set(re.findall(r"^[\w-]+==[\d.]+", locks, re.MULTILINE))
    assert pinned
    assert pinned <= locked


@pytest.mark.parametrize("text", [*HOSTS, *MACHINE_PATHS])
def test_no_file_names_a_registry_or_a_path_of_one_machine(text: str) -> None:
    naming = [path for path in our_files() if text.encode() in bytes_of(path)]
    assert naming == []


def test_clean_deletes_what_git_ignores_and_leaves_the_cache(tmp_path: Path) -> None:
    clone, cache = tmp_path / "clone", tmp_path / "cache"
    names = [line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").splitlines()]
    made = [name.replace("*", "x") for name in names if name not in (".cache", "*.py[cod]")]
    made += [".cache/broker", ".cache/store", ".cache/txlake.zip", "pipelines/__pycache__"]
    for folder in (*(clone / name for name in made), cache):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (clone / "kept.py").touch()
    shutil.copy(ROOT / "Makefile", clone)

    subprocess.run(
        ["make", "clean"], cwd=clone, env={**os.environ, "TXLAKE_CACHE": str(cache)}, check=True
    )
    left = {str(path.relative_to(clone)) for path in clone.rglob("*") if path.is_file()}
    assert {"lake", ".venv", "demo-lakex"} <= set(made)
    assert left == {"Makefile", "kept.py"}
    assert (cache / "file").exists()
