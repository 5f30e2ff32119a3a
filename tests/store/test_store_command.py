"""`txlake store`: what it prints is all that a lake on it needs, and it ends cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from pipelines.cli.main import main
from pipelines.cli.servers import ID_VARIABLE, SECRET_VARIABLE, connection_help, store
from pipelines.local_server.ports import is_listening
from pipelines.local_server.server import HOST
from pipelines.local_store.store import Store
from pipelines.settings import load
from pipelines.settings.values import LakeSettings
from tests.support.processes import ROOT
from tests.support.store import need
from tests.support.wait import DEADLINE_S, wait_until

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Command:
    """A running `txlake store`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text("utf-8")

    def settings(self, folder: Path) -> LakeSettings:
        """Return what the job reads from what was printed."""
        text = self.text[self.text.index("[lake]") :]
        conf = folder / "job.toml"
        conf.write_text(f'{text}\n[kafka]\nbootstrap_servers = "{HOST}:1"\n')
        return load(conf).lake

    def end(self, by: signal.Signals) -> int:
        self._process.send_signal(by)
        return self._process.wait(DEADLINE_S)


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[Command]:
    need("store")
    command = [sys.executable, "-m", "pipelines", "store", "--port", "0", "--bucket", "shop"]
    output = folder / "output"
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [*command, "--data-dir", str(folder / "store")],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            start_new_session=True,
        ) as process,
    ):
        started = Command(process, output)
        try:
            wait_until(
                lambda: "secret_access_key_" in started.text or process.poll() is not None,
                "the store's answer",
                seen=lambda: started.text,
            )
            yield started
        finally:
            process.kill()


def write_and_read(lake: LakeSettings) -> None:
    uri, options = f"{lake.path}/table", dict(lake.store)
    write_deltalake(uri, pa.table({"n": [1]}), storage_options=options)
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table()
    assert table["n"].to_pylist() == [1]


def test_what_it_prints_is_what_a_lake_needs(tmp_path: Path) -> None:
    with running(tmp_path) as command:
        lake = command.settings(tmp_path)
        assert lake.path == "s3://shop/lake"
        write_and_read(lake)
        assert command.end(signal.SIGTERM) == 0
    assert command.text.endswith("\nstopped; its data is kept\n")
    assert lake.store["secret_access_key"] not in command.text
    assert not is_listening(HOST, int(lake.store["endpoint"].rpartition(":")[2]))


def test_keys_of_the_environment_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {ID_VARIABLE: "mine", SECRET_VARIABLE: "never-printed"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with running(tmp_path, **given) as command:
        lake = command.settings(tmp_path)
        assert lake.store["secret_access_key"] == "never-printed"
        write_and_read(lake)
        assert command.end(signal.SIGINT) == 0
    assert "never-printed" not in command.text


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {ID_VARIABLE: "mine"}, f"{ID_VARIABLE} and {SECRET_VARIABLE}: set both, or neither"),
        (["--bucket", "No"], {}, "bucket 'No': 3 to 63 small letters, digits and dashes, no dash"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], environment: dict[str, str], said: str, tmp_path: Path
) -> None:
    need("store")
    command = ["store", "--data-dir", str(tmp_path / "store"), *arguments]
    result = CliRunner().invoke(main, command, env=environment)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {said}")
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "store").exists()


def test_sample_settings_are_those_that_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {option.name: option.default for option in store.params}
    server = Store(defaults["data_dir"], port=defaults["port"])
    text = connection_help(server, defaults["bucket"], None)
    printed = tomllib.loads(text[text.index("[lake]") :])["lake"]
    sample = tomllib.loads((ROOT / "conf" / "store.toml").read_text("utf-8"))["lake"]
    for key in ("access_key_id_file", "secret_access_key_file"):
        path = tmp_path / sample["store"][key]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{key}\n")
        sample["store"][key] = str(Path(sample["store"][key]).absolute())
    assert sample == printed
    monkeypatch.chdir(tmp_path)
    assert load(ROOT / "conf" / "store.toml").lake.path == "s3://lakes/lake"
