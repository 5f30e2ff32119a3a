"""docs/operator.md shows what the commands print: each is run on the lake the page speaks of."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from click import Context
from click.testing import CliRunner
from deltalake import write_deltalake

from pipelines.cli.main import main
from storage.rows import instant
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.lake_rows import CONSUMER_OFFSETS
from txlake import _retries
from txlake.protocol import COMMIT, ROLLBACK, delay_levels_ms

PAGE = Path(__file__).parents[3] / "docs" / "operator.md"
EXAMPLES = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
WIDTH = 130
DISK = SimpleNamespace(total=1 << 40, used=1 << 39, free=1 << 39)
GROUPS = ("tx", "dead", "schedule", "topic", "consumer", "config", "conflicts")
SINGLE = {"maintain --dry-run", "lag --lake", "groups --lake", "status --lake", 'sql "SELECT'}


def make_lake(folder: Path) -> InMemoryJob:
    """Make the lake of the page: five orders, each with another fate."""
    (folder / "job.toml").write_text(
        '[lake]\npath = "lake"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
    )
    job = InMemoryJob(
        folder / "lake", check_max=2, auto_create_topics=False, delay_levels_ms=delay_levels_ms()
    )
    job.command("CREATE_TOPIC", "topic:orders:4", reason="new shop")
    job.run()
    job.half("019b76da91a1", keys="order-1001", producer_group="shop")
    job.half("019b76da91a2", keys="order-1002", producer_group="shop")
    job.half("019b76da91a3", keys="order-1003", producer_group="shop", real_topic="bills")
    job.half(
        "019b76da91a4", keys="order-1004", producer_group="shop", deliver_at=START_AT + 7_200_000
    )
    job.schedule(queue=16, delay_level=17, keys="reminder-7")
    job.end(COMMIT, 2, 3, group="shop")
    job.end(COMMIT, 0, group="shopp")
    job.run()
    job.run(6_000)
    job.end("UNKNOWN", 0, group="shop", from_check=True, check_id="0-0-0-1", remark="not found")
    job.run(30_000)
    job.half("019b76da91a5", keys="order-1005", producer_group="shop")
    job.end(COMMIT, 4, group="shop")
    job.end(ROLLBACK, 4, group="shop")
    job.run(30_000)
    make_consumer(job)
    return job


def make_consumer(job: InMemoryJob) -> None:
    """Let a group have read queue 0 of topic orders 20 s ago, and hold it."""
    row = {
        "consumer_group": "points",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": 0,
        "generation": 1,
        "owner": "host-a:4711:5f0c1d2e",
        "committed_at": instant(START_AT + 50_000),
    }
    rows = pa.Table.from_pylist([row], schema=CONSUMER_OFFSETS)
    write_deltalake(job.lake.table_path("consumer_offsets"), rows)

    attempts = [
        {"attempted_at": instant(START_AT + at), "reason": "JSONDecodeError: Expecting value"}
        for at in (40_000, 50_000)
    ]
    place = {"topic": "orders", "queue_id": 0, "queue_offset": 0, "generation": 1}
    refused = [
        {"consumer_group": "points", "state": "dead", "retries": 2, "attempts": attempts},
        {"consumer_group": "mails", "state": "waiting", "retries": 1, "attempts": attempts[:1]},
    ]
    times = {"due_at": instant(START_AT + 90_000), "committed_at": instant(START_AT + 50_000)}
    rows = pa.Table.from_pylist([place | times | row for row in refused], schema=_retries.SCHEMA)
    write_deltalake(job.lake.table_path("consumer_retries"), rows)


def run(words: str) -> str:
    """Return what a command prints, in lines as short as the page's."""
    result = CliRunner().invoke(main, shlex.split(words)[1:], prog_name="txlake")
    lines: list[str] = []
    for line in result.output.rstrip("\n").splitlines():
        indent = "      "
        wrapped = textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False)
        lines += wrapped if len(line) > WIDTH else [line]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    make_lake(folder)
    return folder


@pytest.mark.parametrize(("words", "expected"), EXAMPLES, ids=[words for words, _ in EXAMPLES])
def test_the_page_shows_what_the_command_prints(
    words: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("time.time_ns", lambda: (START_AT + 70_000) * 1_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: DISK)
    assert run(words) == expected.rstrip("\n")


def test_the_page_shows_every_command() -> None:
    shown = {" ".join(words.split()[1:3]) for words, _ in EXAMPLES}
    groups = {name: main.get_command(Context(main), name) for name in GROUPS}
    named = {f"{name} {inner}" for name, group in groups.items() for inner in group.commands}  # type: ignore[attr-defined]
    assert shown - named == SINGLE and named <= shown
