"""The wheels: all that the packages need is in them, and an environment without a clone runs them.

The environment has the packages of this one beside it, by a path: an install of all of them takes
minutes. Ours it has from the wheels alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipelines.jvm.jars import jar_paths
from pipelines.local_broker.broker import Broker
from pipelines.samples import SAMPLES
from release import wheels
from release.locks import ROOT
from tests.support.damage import make_lake
from tests.support.http_client import free_port, get
from tests.support.job import settings_for
from tests.support.operator import conf_of
from tests.support.wait import DEADLINE_S, wait_until

OURS = ("pipelines", "storage", "checker", "txlake")
# The address of a page or a file that a page of the console links.
LINK = re.compile(r'(?:href|src|action)="(/[^"#?]*)')


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = CliRunner().invoke(wheels.main, ["--into", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def job_wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("txlake_pipelines-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def sdk_wheel(dist: Path) -> zipfile.ZipFile:
    (path,) = dist.glob("txlake-*.whl")
    return zipfile.ZipFile(path)


def environment(folder: Path, installed: Sequence[Path]) -> Path:
    """Makes a virtual environment with these wheels. Output: its folder of programs."""
    venv.create(folder)
    programs = folder / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", *map(str, installed)], check=True)

    (packages,) = folder.glob("lib/python*/site-packages")
    # A path file of a path is not read: so the clone, which one of them names, is not there.
    (packages / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture(scope="module")
def programs(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with both wheels."""
    return environment(tmp_path_factory.mktemp("job") / "env", sorted(dist.glob("*.whl")))


def variables() -> dict[str, str]:
    """Returns the environment of a process that knows of no clone."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(program: Path, *words: str, at: Path) -> str:
    """Runs a program that must end well. Returns what it prints."""
    done = subprocess.run(
        [program, *words], cwd=at, env=variables(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def sources(folder: Path, prefix: str) -> Iterator[str]:
    """Lists the files of a folder of the clone by the names that they have in the wheel."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{prefix}/{path.relative_to(folder).as_posix()}"


def test_the_wheels_have_every_file_of_their_packages_and_no_other(
    job_wheel: zipfile.ZipFile, sdk_wheel: zipfile.ZipFile
) -> None:
    job = {
        *(name for package in OURS[:3] for name in sources(ROOT / package, package)),
        *sources(ROOT / "conf", "pipelines/conf"),
    }
    sdk = set(sources(ROOT / "client" / "txlake", "txlake"))
    assert {"pipelines/console/templates/base.html", "pipelines/jvm/jars.lock.toml"} < job
    assert {f"pipelines/conf/{name}" for name in SAMPLES} < job
    assert "txlake/py.typed" in sdk

    for wheel, expected in ((job_wheel, job), (sdk_wheel, sdk)):
        files = {name for name in wheel.namelist() if ".dist-info/" not in name}
        assert sorted(expected - files) == []
        assert sorted(files - expected) == []


def test_no_index_takes_the_wheels_and_the_job_asks_for_its_own_sdk(
    job_wheel: zipfile.ZipFile, sdk_wheel: zipfile.ZipFile
) -> None:
    job, sdk = metadata_of(job_wheel), metadata_of(sdk_wheel)
    for distribution in (job, sdk):
        assert "Private :: Do Not Upload" in distribution.get_all("Classifier", [])

    required = job.get_all("Requires-Dist", [])
    assert f"txlake[consumer]=={sdk['Version']}" in required
    assert job["Version"] == sdk["Version"]


def test_what_is_installed_beside_the_wheels_is_all_that_the_job_needs_and_locked(
    dist: Path,
) -> None:
    text = (dist / "requirements.txt").read_text("utf-8")
    names = set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE))
    direct = set(re.findall(r'^    "([\w-]+)', (ROOT / "pyproject.toml").read_text("utf-8"), re.M))
    assert {"pyspark", "deltalake", "confluent-kafka", "py4j", "tomli", "markupsafe"} <= names
    assert names.isdisjoint({"pytest", "mypy", "matplotlib", "jupyterlab", "ruff", "txlake"})
    assert {"pyspark", "duckdb", "obstore", "jinja2"} <= direct & names

    entries = re.findall(r"^\S+==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(entries) >= len(names)
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "hatchling==" in (dist / "requirements-build.txt").read_text("utf-8")


def test_an_environment_without_a_clone_has_the_commands_and_their_files(
    programs: Path, tmp_path: Path
) -> None:
    txlake = programs / "txlake"
    code = f"import {', '.join(OURS)}; print(*[m.__path__[0] for m in ({', '.join(OURS)})])"
    for path in run(programs / "python", "-c", code, at=tmp_path).split():
        assert Path(path).is_relative_to(programs.parent), path

    version = version_of_the_clone()
    assert run(txlake, "--version", at=tmp_path) == f"txlake, version {version}\n"

    for name in SAMPLES:
        text = run(txlake, "config", "sample", name, at=tmp_path)
        assert text == (ROOT / "conf" / name).read_text("utf-8")
        if name == "local.toml":
            (tmp_path / name).write_text(text, "utf-8")
    said = run(txlake, "config", "validate", "--conf", "local.toml", at=tmp_path)
    assert said.startswith("local.toml: the settings can be used")

    class_path = run(txlake, "jars", "path", "spark", at=tmp_path).strip()
    assert class_path.split(":") == [str(path) for path in jar_paths("spark")]
    line = run(txlake, "spark-submit", "--print", "--conf", "local.toml", at=tmp_path)
    for file in re.findall(rf"{programs.parent}[^\s']+", line):
        assert Path(file).exists(), file


def version_of_the_clone() -> str:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    return re.findall(r'^version = "(.+)"', text, re.MULTILINE)[0]


@contextmanager
def process(program: Path, *words: str, at: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Yields a running program and its log; it is killed if it has not ended."""
    log = at / "log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            [program, *words], cwd=at, env=variables(), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield running, log
    finally:
        running.kill()
        running.wait()


def is_listening(port: int) -> bool:
    try:
        return get(port, "/").status > 0
    except OSError:
        return False


def test_the_console_of_the_wheel_has_its_pages_and_their_files(
    programs: Path, tmp_path: Path
) -> None:
    lake, port = make_lake(tmp_path / "lake"), free_port()
    words = ("console", "--lake", lake.path, "--port", str(port))

    with process(programs / "txlake", *words, at=tmp_path) as (_, log):
        wait_until(lambda: is_listening(port), "the console's first page", seen=log.read_text)
        pages: dict[str, int] = {}
        waiting = ["/"]

        while waiting and len(pages) < 40:
            path = waiting.pop()
            if path not in pages:
                answer = get(port, path)
                pages[path] = answer.status
                waiting += LINK.findall(answer.text)

    assert len(pages) > 8
    assert any(path.partition("?")[0].endswith(".css") for path in pages)
    assert {path: status for path, status in pages.items() if status >= 500} == {}
    assert pages["/"] == 200


def test_a_job_of_the_wheel_runs_until_it_is_stopped(
    programs: Path, broker: Broker, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    settings, port = settings_for(broker, tmp_path / "lake", unique("wheel")), free_port()
    conf = conf_of(settings, tmp_path, "[metrics]", f"port = {port}")

    with process(programs / "txlake", "run", "--conf", conf, at=tmp_path) as (job, log):

        def is_ready() -> bool:
            assert job.poll() is None, log.read_text()
            try:
                return get(port, "/readyz").status == 200
            except OSError:
                return False

        wait_until(is_ready, "a job that is ready", seen=log.read_text)
        job.send_signal(signal.SIGTERM)
        assert job.wait(DEADLINE_S) == 0, log.read_text()


def test_the_sdks_wheel_is_enough_for_a_producer_and_brings_nothing_of_the_job(
    dist: Path, tmp_path: Path
) -> None:
    (wheel,) = dist.glob("txlake-*.whl")
    python = environment(tmp_path / "env", [wheel]) / "python"
    code = """
import importlib.util, txlake
found = [importlib.util.find_spec(name) for name in ("pipelines", "storage", "checker")]
assert found == [None, None, None]
print(txlake.TransactionProducer.__name__, txlake.__path__[0])
"""
    name, path = run(python, "-c", code, at=tmp_path).split()
    assert name == "TransactionProducer"
    assert Path(path).is_relative_to(tmp_path)
