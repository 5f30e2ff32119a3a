"""Every command over every kind of place that is no usable lake: one sentence each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pipelines.job.driver import Driver
from pipelines.settings import load
from storage.errors import LakeError
from storage.lake.lake import Lake
from storage.schemas import FORMAT_VERSION
from tests.support import lake_commands
from tests.support.damage import log_entries

ROOT = Path(lake_commands.__file__).parents[2]
_MODE = 0o755


def _newer(lake: Path) -> None:
    row = Lake(str(lake)).read("lake")
    version = pa.array([FORMAT_VERSION + 1], pa.int32())
    place = row.schema.get_field_index("format_version")
    changed = row.set_column(place, "format_version", version)
    write_deltalake(str(lake / "lake"), changed, mode="overwrite")


def _cut(table: str) -> Callable[[Path], None]:
    def cut(lake: Path) -> None:
        entry = log_entries(lake / table)[0]
        entry.write_bytes(entry.read_bytes()[:50])

    return cut


def _of_another(lake: Path) -> None:
    shutil.rmtree(lake / "lake")
    write_deltalake(str(lake / "lake"), pa.table({"amount": [1]}))


def _a_table(lake: Path) -> None:
    shutil.rmtree(lake)
    write_deltalake(str(lake), pa.table({"amount": [1]}))


def _a_file(lake: Path) -> None:
    shutil.rmtree(lake)
    lake.write_text("")


def _emptied(lake: Path) -> None:
    shutil.rmtree(lake)
    lake.mkdir()


# What became of a lake | what each command says | whether a job starts Spark there: it makes a
# lake, or looks at the table before its first epoch.
KINDS = {
    "no folder": (shutil.rmtree, "is not a lake: `txlake run` makes one there", True),
    "an empty folder": (_emptied, "is not a lake: `txlake run` makes one there", True),
    "a file": (_a_file, "is a file, not a folder", False),
    "another's Delta table": (_a_table, "is not a lake: `txlake run` makes one there", True),
    "another's table lake": (_of_another, "its table lake is none of txlake's", False),
    "a cut log of lake": (_cut("lake"), "the table lake .* cannot be read: .*Json error", False),
    "a cut log of epochs": (_cut("epochs"), "the table epochs .*cannot be read: .*Json", True),
    "a newer format": (_newer, f"has format {FORMAT_VERSION + 1}; this txlake knows", False),
}
# These look at what is damaged, or make a new lake of what is whole; the SDK, and publishers that
# read by it, have their own words.
OTHERWISE = ("verify", "replay --into", lake_commands.SDK, "publish")


def settings_of(folder: Path, lake: Path | str) -> str:
    conf = folder / "job.toml"
    kafka = '[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[publish.main]\n'
    conf.write_text(f'[lake]\npath = "{lake}"\n{kafka}')
    conf.chmod(0o644)
    return str(conf)


def require_one_sentence(answers: dict[str, tuple[int, str]], said: str) -> None:
    """Checks that each command, and the SDK, ended with one sentence, which has `said`."""
    assert len(answers) > 25
    for command, (code, text) in answers.items():
        if command.startswith(OTHERWISE[:2]) and code in (0, 3):
            continue
        assert (code, len(text.splitlines()), "\x1b" in text) == (1, 1, False), (command, text)
        assert re.search(said, text) or command.startswith(OTHERWISE), (command, text)


def test_every_command_that_names_a_lake_is_tried() -> None:
    named = lake_commands.commands_with_settings()
    assert named == set(lake_commands.OPENING) | lake_commands.NOT_OPENING


@pytest.mark.usefixtures("one_look")
@pytest.mark.parametrize(("made", "said", "is_begun"), KINDS.values(), ids=KINDS)
def test_a_place_that_is_no_usable_lake_is_one_sentence(
    made: Callable[[Path], None],
    said: str,
    is_begun: bool,
    lake_copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made(lake_copy)
    conf = settings_of(tmp_path, lake_copy)
    require_one_sentence(lake_commands.answers(conf, lake_commands.opening_commands()), said)
    if not is_begun:
        _start_is_refused(conf, monkeypatch)


def _start_is_refused(conf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.job.driver.start_session", None)
    with pytest.raises(LakeError) as refused:
        Driver(load(conf)).run()
    assert "\n" not in str(refused.value)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else it asks the network


@pytest.mark.usefixtures("no_credentials", "one_look")
def test_a_store_without_credentials_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = settings_of(tmp_path, "s3://bucket/lake")
    answers = lake_commands.answers(conf, lake_commands.opening_commands())
    require_one_sentence(answers, "no credentials for its store are found")
    _start_is_refused(conf, monkeypatch)


# What of a lake a user may not read | how it is named below the lake.
HIDDEN = {"the lake": ".", "a log": "epochs/_delta_log", "the first log": "lake/_delta_log"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that is not below one of pytest's, which nobody else can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(_MODE)
        yield Path(folder)


def test_a_lake_without_rights_is_one_sentence(whole_lake: Path, open_folder: Path) -> None:
    lake = open_folder / "lake"
    shutil.copytree(whole_lake, lake)
    conf = settings_of(open_folder, lake)
    for hidden in HIDDEN.values():
        (lake / hidden).chmod(0)
        try:
            found = _without_roots_rights(conf)
        finally:
            (lake / hidden).chmod(_MODE)
        require_one_sentence(found, r"refuses \(Permission denied\): nothing is lost; give")


def _without_roots_rights(conf: str) -> dict[str, tuple[int, str]]:
    """Runs all commands where rights count: root's go beyond any."""
    commands = json.dumps(lake_commands.opening_commands())
    program = [sys.executable, "-m", "tests.support.lake_commands", conf, commands]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv (util-linux): root reads whatever the rights are")
        rights = "-dac_override,-dac_read_search"
        program = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *program]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, check=True)
    found: dict[str, tuple[int, str]] = {
        command: (code, text) for command, (code, text) in json.loads(done.stdout).items()
    }
    return found
