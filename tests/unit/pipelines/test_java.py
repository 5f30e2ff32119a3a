"""Which Java is taken: the named one, the one on PATH, the one of the wheel; each as 17 or 21."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipelines.jvm import java

ALL_MODULES = f"java.base {java.VECTOR_MODULE}"


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java of this machine, and forget which one this process found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TXLAKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(java, "java_home", java.java_home.__wrapped__)


def make_java(home: Path, version: str, modules: str | None = ALL_MODULES) -> Path:
    """Make a Java that says what it was given; without modules, it has no `release` file."""
    (home / "bin").mkdir(parents=True)
    binary = home / "bin" / "java"
    binary.write_text(f'#!/bin/sh\necho "    java.version = {version}" >&2\necho "$@"\n')
    binary.chmod(0o755)
    if modules is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def put_on_path(home: Path, tmp_path: Path) -> None:
    """Link the Java as a system does."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")


@pytest.mark.parametrize("version", ["17.0.15", "21", "21.0.8"])
def test_java_home_is_taken_before_the_one_on_path(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_java(tmp_path / "named", version)
    put_on_path(make_java(tmp_path / "other", "17.0.1"), tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.java_home() == named
    assert java.java_binary() == named / "bin" / "java"


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16.0.2", "18", "20.0.1", "22", "25.0"])
def test_java_of_another_version_is_passed_over(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = make_java(tmp_path / "other", "17.0.1")
    put_on_path(on_path, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "named", version)))
    assert java.java_home() == on_path


def test_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    on_path = make_java(tmp_path / "other", "21.0.1", modules=None)
    put_on_path(on_path, tmp_path)
    assert java.java_home() == on_path


def test_runtime_without_the_vector_module_gets_a_shim_that_drops_the_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = make_java(tmp_path / "it's small", "21.0.8", modules="java.base")
    monkeypatch.setenv("JAVA_HOME", str(small))
    home = java.java_home()
    assert home.is_relative_to(tmp_path / "cache")
    arguments = ["-cp", "a b", f"--add-modules={java.VECTOR_MODULE}", "", "Main", "$x"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == "-cp a b  Main $x\n"
    assert java.java_home() == home


def test_no_java_says_what_was_seen_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(java.JavaError) as caught:
        java.java_home()
    assert str(caught.value) == (
        f"no Java 17 or 21 was found (JAVA_HOME={home} is Java 11): run `make java`, "
        "which installs one into .venv, or set JAVA_HOME"
    )
