"""`txlake status` against a real broker and the real job: what Kafka alone knows."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pipelines.cli.main import main
from pipelines.local_broker.broker import Broker
from tests.support.job import Job, running, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import conf_of
from tests.support.wait import wait_until

NAME = "status"
HOUR_NS = 3_600_000_000_000
IMMUNE = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}


def run(conf: str, *words: str, code: int = 0) -> Any:
    """Run a command with JSON output."""
    result = CliRunner().invoke(main, [*words, "--conf", conf, "-o", "json"])
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


def names(told: dict[str, Any]) -> list[str]:
    return [problem["name"] for problem in told["problems"]]


def records(told: dict[str, Any]) -> dict[str, int]:
    return {lag["topic"]: lag["records"] for lag in told["lags"] if lag["makes_epochs"]}


def pend(job: Job, wire: KafkaWriter, *ids: str) -> None:
    """Send halves and wait until they are pending."""
    before = len(job.rows("half"))
    for transaction_id in ids:
        wire.half(transaction_id, group="shop", **IMMUNE)
    job.wait_for_rows("half", before + len(ids))
    newest = max(row["epoch"] for row in job.rows("half"))
    job.wait_for(lambda: job.plans and job.plans[-1].epoch >= newest, "the halves' epoch")


def test_status_tells_the_driver_the_lag_and_that_no_epoch_comes(
    broker: Broker, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(broker, tmp_path / "lake", NAME, transaction={"check_max": 0})
    conf = conf_of(settings, tmp_path, "[transaction]", "check_max = 0")
    wire = KafkaWriter(settings)
    with running(settings, verifies=False) as job:
        pend(job, wire, "one", "two")
        told = run(conf, "status")
        assert told["drivers"]["active"].count(":") == 2
        assert told["pending"] == 2 and told["groups"][0]["producer_group"] == "shop"
        assert told["state_rows"] == 2 and 0 < told["state_bytes"] < 2 * 300
        assert set(records(told).values()) == {0} and told["behind_ms"] == 0
        assert names(told) == [] and told["unknown"] == []
        (group,) = run(conf, "groups")
        assert (group["pending"], group["members"]) == (2, 0)  # nobody listens for checks

    wait_until(lambda: run(conf, "status")["drivers"]["active"] is None, "the driver has left")
    told = run(conf, "status")
    assert names(told) == ["not_running"]  # though nothing waits for an epoch
    assert told["problems"][0]["words"] == "no driver has the lake: nothing is decided or delivered"
    sent_at = time.time_ns()
    for queue in (0, 1, 1):
        wire.half("late", queue=queue)
    told = run(conf, "status")
    assert records(told)[f"{NAME}-half"] == 3
    assert 0 <= told["behind_ms"] <= (time.time_ns() - sent_at) // 1_000_000 + 1_000
    assert names(told) == ["not_running"]
    real = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + HOUR_NS)
    told = run(conf, "status")
    assert names(told)[:3] == ["not_running", "no_epoch", "lag"]
    assert told["behind_ms"] >= 3_600_000
    text = CliRunner().invoke(main, ["status", "--conf", conf]).output
    assert re.match(r"\d problems?\n", text) and "active: none" in text
    assert f"{NAME}-half: 3 records, 1 h" in text
    assert re.search(
        r"^  no_epoch: no epoch was committed for 1 h, with 3 records wait", text, re.M
    )
    assert re.search(r"^  pending_old: the oldest pending half was stored 1 h ago$", text, re.M)
    assert re.search(r"^  lag: the job is 1 h behind Kafka: 3 records waiting$", text, re.M)
    assert "no_check_topic" not in text  # nobody is ever asked

    told = run(conf_of(settings, tmp_path), "status")  # where 15 checks are sent
    assert told["groups_without_topic"] == ["shop"]
    (words,) = (one["words"] for one in told["problems"] if one["name"] == "no_check_topic")
    assert (
        words == "group shop has no check topic, with 2 halves pending: nobody can be asked about "
        "them"
    )
    made = CliRunner().invoke(main, ["check", "topic", "shop", "--conf", conf])
    assert made.exit_code == 0, made.output
    assert "no_check_topic" not in names(run(conf_of(settings, tmp_path), "status"))


def test_many_are_resumed_and_ended_at_once(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    settings = settings_for(broker, tmp_path / "lake", "bulk", transaction={"check_max": 0})
    conf, wire = conf_of(settings, tmp_path), KafkaWriter(settings)
    by = ("--reason", "ticket 4711", "--actor", "ada", "--yes", "--wait-s", "240")
    with running(settings, verifies=False) as job:
        for number in range(3):
            wire.half(f"dead-{number}", queue=number % 2, group="dead")
        pend(job, wire, "one", "two", "three")
        job.wait_for_rows("outcomes", 3)
        job.wait_for(lambda: len(run(conf, "dead", "list")) == 3, "three that were given up")
        told = run(conf, "dead", "resume", "--group", "dead", "--max", "5", *by)
        assert [row["result"] for row in told] == ["rearmed"] * 3
        told = run(conf, "tx", "commit", "--group", "shop", "--max", "2", *by)
        assert [row["result"] for row in told] == ["COMMITTED, cause operator"] * 2
        left = [row["transaction_id"] for row in run(conf, "tx", "list", "--pending")]
        assert "three" in left and not {"one", "two"} & set(left)
        assert {row["actor"] for row in job.rows("op")} == {"ada"}
