"""docs/production.md: its commands, settings and figures are those of product and reports."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from pipelines.metrics.catalog import METRICS
from pipelines.settings import Settings, parse
from tests.support.commands import require_command
from txlake import protocol

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "production.md").read_text("utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
# In a block and in a sentence; a command of a group may be named alone.
SHOWN = [
    line
    for block in BLOCKS
    for line in re.findall(
        r"(?:^|/bin/|^TXLAKE_CACHE=\S+ /opt/txlake/bin/)txlake (.*)$", block, re.M
    )
]
NAMED = re.findall(r"`txlake ([^`]+)`", PAGE)
REPORT = (ROOT / "docs" / "benchmarks" / "small" / "report.md").read_text("utf-8")
STANDBY = (ROOT / "docs" / "benchmarks" / "standby.md").read_text("utf-8")


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_that_the_page_shows_can_be_run(words: str) -> None:
    require_command(words.partition(" > ")[0])


@pytest.mark.parametrize("words", NAMED)
def test_a_command_that_the_page_names_has_these_options(words: str) -> None:
    require_command(words, is_whole=False)


def test_the_page_shows_commands_of_every_part() -> None:
    first = {words.split()[0] for words in (*SHOWN, *NAMED)}
    assert {"backup", "verify", "config", "jars", "doctor", "acl", "publish", "status"} <= first


def test_the_settings_of_the_page_are_there() -> None:
    sections = {field.name for field in fields(Settings)}
    sample = (ROOT / "conf" / "local.toml").read_text("utf-8")
    keys = {
        section: set(re.findall(r"^(\w+) =", body, re.MULTILINE))
        for section, body in re.findall(r"^\[([\w.]+)\](.*?)(?=^\[|\Z)", sample, re.M | re.S)
    }

    named = re.findall(r"\[(\w+)\] (\w+)`", PAGE)
    assert len(named) > 6
    assert [pair for pair in named if pair[0] not in sections] == []
    assert [(section, key) for section, key in named if key not in keys[section]] == []

    alone = set(re.findall(r"`(\w+(?:_ms|_topic|_trigger|_bytes))`", PAGE))
    known = set().union(*keys.values()) | {metric.name for metric in METRICS} | {"progress_topic"}
    assert {name for name in alone if not name.startswith("process_")} - known == set()


def _figure(name: str) -> str:
    """Return the value of a figure in the report, as it stands there."""
    (value,) = re.findall(rf"^\| {re.escape(name)} \| ([\d.,]+) \| ", REPORT, re.MULTILINE)
    return str(value)


def _section(name: str) -> str:
    """Return what the report says below a figure."""
    (section,) = re.findall(rf"^## {re.escape(name)}\n(.*?)(?=^## )", REPORT, re.M | re.S)
    return str(section)


@pytest.mark.parametrize(
    "name",
    [
        "sustained",
        "memory",
        "memory, one large epoch",
        "memory, 1-MiB bodies",
        "bytes",
        "start",
        "latency at 1,000 tx/s, p50",
        "latency at 1,000 tx/s, p99",
    ],
)
def test_a_figure_of_the_page_is_that_of_the_report(name: str) -> None:
    assert _figure(name) in PAGE


def test_the_parts_of_figures_on_the_page_are_those_of_the_reports() -> None:
    (by_table,) = re.findall(r"by_table: (.*)", _section("bytes"))
    tables = json.loads(by_table)
    half, topic = round(tables["half"], 2), round(tables["topics/1"], 2)
    assert f"{half:.2f} in `half`, {topic:.2f} in its topic" in PAGE

    cores = {
        name: json.loads(re.findall("cores: (.*)", _section(name))[0])["job"]
        for name in ("sustained", "latency at 1,000 tx/s, p50")
    }
    assert f"the job using {cores['sustained']:.2f}" in PAGE
    assert f"took the job {cores['latency at 1,000 tx/s, p50']:.2f} cores" in PAGE
    assert f"without input {float(_figure('idle processor')):.2f}" in PAGE
    assert "| kill -9 | 10 | 8.1 s |" in STANDBY and "| SIGTERM | 10 | 3.4 s |" in STANDBY
    assert "3.4 s after SIGTERM and 8.1 s after kill -9" in PAGE

    half_and_others, days = float(_figure("bytes")) - topic, 7
    bytes_ = 1_000 * 86_400 * 256 * (half_and_others * 2 * days + topic * days)
    assert f"{bytes_ / 1e9:.0f} GB at most" in PAGE


def test_the_kafka_topics_of_the_page_are_those_that_the_job_makes() -> None:
    settings = parse({"lake": {"path": "x"}, "kafka": {"bootstrap_servers": "x:1"}}, "test")
    (topics,) = re.findall(r"^for topic in (.*); do$", PAGE, re.MULTILINE)
    assert set(topics.split()) == set(settings.kafka.topics().values())

    bytes_max = protocol.batch_bytes_max(settings.transaction.message_bytes_max)
    assert f"`max.message.bytes={bytes_max}`" in PAGE
    levels = len(protocol.delay_levels_ms(settings.delay.levels))
    assert f"than `[delay] levels` has, {levels + 1} by default" in PAGE
    assert f"`[kafka] queues` each, {settings.kafka.queues} by default" in PAGE


def test_every_section_names_a_test_or_a_measurement() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    without = [
        text.splitlines()[0]
        for text in sections
        if not re.search(r"`test_\w+`|benchmarks/|tests/|\.md", text)
    ]
    assert without == []
