"""The command line itself: every command is found, and none imports what it does not need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click import Context, Group
from click.testing import CliRunner

from pipelines.cli.import_blocker import WITH_SPARK
from pipelines.cli.main import main
from pipelines.jvm import java
from pipelines.local_broker.broker import Broker
from pipelines.local_server.server import ServerError
from tests.support.notebook_lake import shop_rows, write_lake
from tests.support.operator import said

# Too heavy for any command but those that run Spark or draw pictures.
HEAVY = (
    "pandas",
    "pyspark",
    "py4j",
    "matplotlib",
    "polars",
    "starlette",
    "uvicorn",
    "jinja2",
)
# Too heavy for help, too.
NOT_FOR_HELP = (
    *HEAVY,
    "pyarrow",
    "duckdb",
    "deltalake",
    "confluent_kafka",
    "numpy",
    "cryptography",
)
WITHOUT_KAFKA = (*HEAVY, "confluent_kafka", "txlake.consumer", "txlake.producer")
READING = (
    "status",
    "topic list",
    "tx list --pending",
    "dead list",
    "conflicts list",
    "groups",
    "lag",
    "schedule list",
    "tx explain 0-1",
    "verify",
    "topic read orders --tail",
    "sql SELECT(1)",
)
COMMANDS = sorted(main.list_commands(Context(main)))
NAMING = {"--conf", "--lake"}
LOCAL = Path(__file__).parents[3] / "conf" / "local.toml"


def options() -> dict[str, set[str]]:
    """Return the options of each command, those of groups as `tx list`."""
    found: dict[str, set[str]] = {}
    for name in COMMANDS:
        command = main.get_command(Context(main), name)
        inner = command.commands if isinstance(command, Group) else {"": command}
        for other, one in inner.items():
            assert one is not None
            found[f"{name} {other}".strip()] = {text for it in one.params for text in it.opts}
    return found


OPTIONS = options()
GROUPS = sorted({words.split()[0] for words in OPTIONS if " " in words})


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True
    )


def imported(commands: Sequence[str], modules: Sequence[str]) -> list[str]:
    """Return which of some modules a process has that ran these commands and no other."""
    program = (
        "import sys\n"
        "from pipelines.cli.import_blocker import block_pandas\n"
        "from pipelines.cli.main import main\n"
        "for command in sys.argv[1:]:\n"
        "    block_pandas(command.split())\n"
        "    main(command.split(), standalone_mode=False)\n"
        f"print(*sorted(set({modules!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = run(program, *commands)
    assert done.returncode == 0, done.stderr
    return done.stderr.split()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a lake with a known story."""
    return write_lake(shop_rows(), tmp_path_factory.mktemp("light") / "lake").path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says(name: str) -> None:
    found = main.get_command(Context(main), name)
    assert found is not None and found.name == name


def test_commands_with_spark_are_commands() -> None:
    assert set(COMMANDS) >= WITH_SPARK


def test_help_imports_nothing_heavy() -> None:
    named = sorted({*COMMANDS} - {"spark-submit", "environment"})
    assert imported([f"{name} --help" for name in named], NOT_FOR_HELP) == []


@pytest.mark.parametrize("name", ["", *GROUPS])
def test_help_cuts_no_sentence_at_80_columns(name: str) -> None:
    result = CliRunner().invoke(main, [*name.split(), "--help"], env={"COLUMNS": "80"})
    listed = re.findall(r"^  [a-z].*", result.output.partition("Options:")[2], re.M)
    assert result.exit_code == 0
    assert len(listed) >= 1
    assert [line for line in listed if not line.endswith(".")] == []


def test_help_has_each_command_once_under_its_heading() -> None:
    told = CliRunner().invoke(main, ["--help"]).output
    sections = re.findall(r"^([A-Z][a-z ]+):\n((?:  .+\n)+)", told, re.M)
    assert [heading for heading, _ in sections] == ["Options", "See", "Fix", "Run", "Set up"]
    named = [line.split()[0] for _, lines in sections[1:] for line in lines.splitlines()]
    assert sorted(named) == COMMANDS


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("statsu", "Did you mean 'status'?"),
        ("spark-sumbit", "Did you mean 'spark-submit'?"),
        ("resume", "Did you mean 'dead resume'?"),
        ("topic lst", "Did you mean 'list'?"),
        ("status --lak x", "Did you mean '--lake'?"),
    ],
)
def test_an_unknown_name_is_told_with_the_near_one(words: str, near: str) -> None:
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2
    assert near in result.output


def test_variables_stand_for_conf_and_lake_of_every_command(tmp_path: Path) -> None:
    def said(words: str, **named: str) -> str:
        result = CliRunner().invoke(main, words.split(), env=named)
        assert result.exit_code in (1, 2), result.output
        return result.output.splitlines()[-1]

    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    job = tmp_path / "job.toml"
    job.write_text(f'[lake]\npath = "{there}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    lake, conf, both = {"TXLAKE_LAKE": here}, {"TXLAKE_CONF": str(job)}, {}
    both = {**lake, **conf}

    for words in ("status", "verify", "replay --verify", "console"):
        assert here in said(words, **lake), words
        assert there in said(words, **conf), words
        assert there in said(words, **both), words
        assert here in said(f"{words} --lake {here}", **conf), words
        assert there in said(f"{words} --conf {job}", **lake), words
    assert there in said("tx commit 0-0 --reason why", **conf)
    assert there in said("maintain --dry-run", **both)
    assert "Missing option '--conf' (env var: 'TXLAKE_CONF')" in said("run", **lake)
    assert "'nowhere' does not exist" in said("spark-submit --print", TXLAKE_CONF="nowhere")
    other = ["spark-submit", "--print", "--", "replay", "--lake", "x"]
    printed = CliRunner().invoke(main, other, env=conf)
    assert printed.output.rstrip().endswith("submit.py replay --lake x")


@pytest.mark.parametrize("words", [words for words in OPTIONS if OPTIONS[words] & NAMING])
def test_each_option_that_names_a_lake_has_its_variable(words: str) -> None:
    told = CliRunner().invoke(main, [*words.split(), "--help"]).output
    flat = " ".join(told.split())
    for option, variable in (("--conf", "TXLAKE_CONF"), ("--lake", "TXLAKE_LAKE")):
        assert (option in OPTIONS[words]) == (f"[env var: {variable}" in flat)


def test_a_command_that_reads_a_lake_imports_neither_pandas_nor_kafka(lake: str) -> None:
    assert imported([f"{command} --lake {lake}" for command in READING], WITHOUT_KAFKA) == []


def test_settings_and_a_connection_import_no_reader_of_keys_and_no_client_of_stores() -> None:
    program = (
        "import sys, pipelines.kafka_client.connection\n"
        "print({'cryptography', 'obstore', 'pyarrow.dataset'} & sys.modules.keys())\n"
    )
    assert run(program).stdout == "set()\n"


def test_the_sdk_imports_a_module_with_the_first_of_its_names() -> None:
    program = (
        "import sys, txlake\n"
        "txlake.SigningKey, txlake.LakeError\n"
        "print({'confluent_kafka', 'pyarrow', 'deltalake'} & sys.modules.keys())\n"
        "from txlake import *\n"
        "print(Consumer.__module__, TransactionProducer.__module__)\n"
        "txlake.Nothing\n"
    )
    done = run(program)
    assert done.stdout == "set()\ntxlake.consumer txlake.producer\n"
    assert done.stderr.endswith("module 'txlake' has no attribute 'Nothing'\n")


def test_a_hidden_pandas_is_a_pandas_that_is_not_installed() -> None:
    program = (
        "from pipelines.cli.import_blocker import block_pandas\n"
        "block_pandas(['status'])\n"
        "import pyarrow as pa\n"
        "print(pa.array([1]).to_pylist())\n"
        "import pandas\n"
    )
    done = run(program)
    assert done.stdout == "[1]\n"
    assert "ModuleNotFoundError: pandas is hidden" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        "    signal.raise_signal(signal.SIGINT)\n",
        # As DuckDB does: a library turns it into an error of its own.
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        raise RuntimeError('Query interrupted') from None\n",
    ],
    ids=["as it is", "as an error"],
)
def test_ctrl_c_ends_a_command_with_its_own_exit_code_and_no_traceback(body: str) -> None:
    program = (
        "import signal\n"
        "from pipelines.cli.main import main\n"
        "@main.command('wait')\n"
        "def wait():\n"
        f"{body}"
        "main(['wait'], prog_name='txlake')\n"
    )
    done = run(program)
    assert (done.returncode, done.stderr.strip()) == (130, "stopped by Ctrl-C")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tx", "list", "--keys", "\udcff"], r"the argument \udcff is not text in UTF-8"),
        (["sql", "select '\udcff'"], "is not text in UTF-8"),
        (["verify", "--lake", "/data/\udcff"], r"/data/\udcff is not text in UTF-8"),
        (["tx", "list", "--limit", "9223372036854775808"], "is not in the range 1<=x<=1000000000"),
        (["maintain", "--conf", "x", "--wait-s", "nan"], "'nan': a number of seconds"),
        (
            ["spark-submit", "--print", "--conf", str(LOCAL), "--submit-options", "'"],
            "--submit-options ': No closing quotation",
        ),
        (["consumer", "reset", "g", "--topic", "t", "--to", "0001-01-01T00:00+14:00"], "0001-01"),
        (["top", "--lake", "x", "--every-s", "nan"], "'nan': a number of seconds"),
        (["top", "--lake", "x", "--every-s", "inf"], "inf is not in the range 0.2<=x<=31622400"),
        (["top", "--lake", "x", "--every-s", "1e300"], "is not in the range 0.2<=x<=31622400"),
        (["top", "--lake", "x", "--every-s", "0.1"], "is not in the range 0.2<=x<=31622400"),
        (["backfill", "--conf", "x", "--from-offsets", '{"X":{"0":1e999}}'], "offsets as"),
        (["backfill", "--conf", "x", "--from-offsets", "[" * 50_000], "[...': offsets as"),
        (["verify", "--lake", "x", "--memory-mb", "9" * 23], "is not in the range 10<=x<=1000"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_wrong_usage(words: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2, (result.output, result.exception)
    assert sentence in result.output


def test_a_file_in_the_place_of_a_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").touch()
    monkeypatch.chdir(tmp_path)
    for words, sentence in (
        (
            ["spark-submit", "--print", "--conf", str(LOCAL)],
            "/.cache/txlake.zip cannot be written (",
        ),
        (["environment", "/etc/passwd/x.tar"], "/etc/passwd/x.tar cannot be written ("),
        (["console", "--lake", "x", "--host", "a..b"], "--host a..b: there is no such address"),
    ):
        output = said(*words, code=1)
        assert sentence in output
        assert output.startswith("Error: ")


def test_a_cache_that_is_a_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TXLAKE_CACHE", str(tmp_path / "file"))
    java.java_home.cache_clear()
    try:
        for words in (("jars", "verify"), ("jars", "fetch", "spark"), ("jars", "path", "spark")):
            output = said(*words, code=1)
            assert output.startswith(f"Error: the cache {tmp_path}/file cannot be used (")
        assert "cannot be used" in said("doctor", code=1)
    finally:
        java.java_home.cache_clear()


def test_a_list_of_a_caller_that_has_closed_stdout_goes_nowhere(lake: str) -> None:
    program = f"""
import sys
from pipelines.cli.main import main
sys.stdout = None  # as Python does where descriptor 1 is closed
main(['sql', 'SELECT 1 AS x', '--lake', {lake!r}], prog_name='txlake')
"""
    done = run(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_number_in_a_column_that_is_called_as_an_instant_stays_one(lake: str) -> None:
    query = (
        "SELECT 7 AS since, 9223372036854775807 AS x_at, TIMESTAMPTZ '2026-01-31 00:00:00Z' AS y_at"
    )
    (row,) = json.loads(said("sql", query, "--lake", lake, "-o", "json"))
    assert row == {
        "since": 7,
        "x_at": 9223372036854775807,
        "y_at": "2026-01-31T00:00:00.000Z",
    }
    table = said("sql", query, "--lake", lake).splitlines()[1].split()
    assert table[:2] == ["7", "9223372036854775807"]
    assert table[-1] == "ago" or table[2] == "in"


def test_a_span_before_all_years_is_from_the_first_instant_on(lake: str) -> None:
    for words in (("tx", "list"), ("conflicts", "list")):
        said(*words, "--since", "800000d", "--lake", lake)


def test_output_that_the_terminal_cannot_show_is_one_sentence(lake: str) -> None:
    program = (
        "from pipelines.cli.main import main\n"
        f"main(['sql', 'select chr(8364)', '--lake', {lake!r}, '-o', 'csv'], prog_name='txlake')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip().endswith("set PYTHONIOENCODING=utf-8"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is Linux's")
def test_a_version_that_nothing_takes_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pipelines", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr or "full" in done.stderr, done.stderr


@pytest.mark.parametrize("server", ["broker", "store"])
@pytest.mark.parametrize("port", ["-1", "65536", "80000"])
def test_a_port_that_is_none_is_wrong_usage(server: str, port: str) -> None:
    assert "0<=x<=65535" in said(server, "--port", port, code=2)


def test_a_server_refuses_such_a_port_too(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"port 80000: a number 0 \.\. 65535 is allowed"):
        Broker(tmp_path, port=80_000).start()
