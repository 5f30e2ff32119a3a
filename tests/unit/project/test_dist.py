"""The wheels of `make dist` have all that the packages have, and run where no clone is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"txlake_pipelines": ("pipelines", "storage", "checker"), "txlake": ("client/txlake",)}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build both wheels; return them by their project's name."""
    dist = tmp_path_factory.mktemp("dist") / "wheels"
    packages = ROOT / ".venv" / ".packages"  # as it is: a newer lock is no matter of this test
    command = ["make", "-o", str(packages.relative_to(ROOT)), "dist", f"DIST={dist}",
               f"PY={sys.executable}"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {path.name.partition("-")[0]: path for path in dist.glob("*.whl")}


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheels alone, beside the packages that they need; return the bin folder."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
               "--no-deps", "--no-index", "--disable-pip-version-check"]  # fmt: skip
    done = subprocess.run([*install, *wheels.values()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    # What the lock has, but not ours: the `.pth` files of another folder are not read.
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "locked.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
    return folder / "bin"


def run(command: list[str | Path], cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("project", PACKAGES)
def test_a_wheel_has_all_files_of_its_packages(wheels: dict[str, Path], project: str) -> None:
    names = set(zipfile.ZipFile(wheels[project]).namelist())
    files = {
        str(path.relative_to((ROOT / package).parent))
        for package in PACKAGES[project]
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 20
    assert files - names == set()


def test_the_jobs_wheel_has_the_settings_that_spark_starts_with(wheels: dict[str, Path]) -> None:
    names = set(zipfile.ZipFile(wheels["txlake_pipelines"]).namelist())
    conf = {f"pipelines/conf/{path.name}" for path in (ROOT / "conf").iterdir()}
    assert conf <= names


def test_the_command_runs_where_no_clone_is(installed: Path, tmp_path: Path) -> None:
    said = run([installed / "txlake", "--version"], tmp_path)
    assert metadata.version("txlake-pipelines") in said
    assert "--standby" in run([installed / "txlake", "run", "--help"], tmp_path)

    program = (
        "import pipelines, txlake, json; from importlib.resources import files\n"
        "from pipelines.jvm.session import defaults, java_options\n"
        "from pipelines.jvm.jars import locked\n"
        "java_options()\n"
        "page = files('pipelines.console') / 'templates'\n"
        "print(json.dumps([pipelines.__file__, txlake.__file__, len(defaults()),\n"
        "    len(locked('spark')), len(list(page.iterdir()))]))"
    )
    ours, sdk, *counts = json.loads(run([installed / "python", "-c", program], tmp_path))
    for path in (ours, sdk):
        assert Path(path).is_relative_to(installed.parent)
    assert all(count > 5 for count in counts)


def test_settings_are_read_by_what_is_installed(installed: Path, tmp_path: Path) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(
        f'[lake]\npath = "{tmp_path}/lake"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n', "utf-8"
    )
    shown = run([installed / "txlake", "config", "show", "--conf", conf, "-o", "csv"], tmp_path)
    assert f"lake,path,{tmp_path}/lake" in shown
