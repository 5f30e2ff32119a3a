"""Commands about many things at once: what they choose, that nothing is written unasked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.health.transactions import Filters, list_stored
from pipelines.operate.bulk import dead_targets, pending_targets
from tests.support.in_memory_job import InMemoryJob
from tests.support.operator import said, txlake
from txlake.protocol import COMMIT

BY = ("--reason", "ticket 4711", "--actor", "ada")


def tried(conf: str, *words: str) -> list[tuple[str, str]]:
    """Run a command about many things as a dry run. Returns its targets and what it expects."""
    result = txlake(*words, *BY, "--conf", conf, "-o", "json")
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    assert {row["offset"] for row in rows} <= {None}
    return [(row["target"], row["expected"].split(":")[0].split(",")[0]) for row in rows]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InMemoryJob:
    """Four transactions of two groups, one of them a set, and one that is undeliverable."""
    job = InMemoryJob(
        tmp_path / "lake", check_max=0, auto_create_topics=False, transaction_timeout_ms=60_000
    )
    job.half("a", producer_group="shop", keys="order-1")
    for seq in range(2):
        job.half("b", producer_group="shop", tran_size=2, tran_seq=seq)
    job.end(COMMIT, job.half("stuck", queue=1))
    job.end(COMMIT, 0, queue=1)
    job.run(10_000)
    job.half("c", producer_group="bank", real_topic="bills")
    job.half("d", producer_group="shop")
    job.run(10_000)
    monkeypatch.setattr("time.time_ns", lambda: job.at * 1_000_000)
    return job


@pytest.mark.usefixtures("job")
def test_ends_are_tried_for_what_is_pending_and_fits_the_oldest_first(conf: str) -> None:
    def chosen(*words: str) -> list[str]:
        return [target for target, _ in tried(conf, "tx", "rollback", *words, "--max", "9")]

    assert chosen("--group", "shop") == ["half:0-0", "half:0-1", "half:0-4"]  # a set is named once
    assert chosen("--topic", "bills") == ["half:0-3"]
    assert chosen("--keys", "order-1") == ["half:0-0"]
    assert chosen("--group", "shop", "--older-than", "15s") == ["half:0-0", "half:0-1"]
    assert chosen("--group", "nobody") == []
    both = tried(conf, "tx", "rollback", "--group", "shop", "--max", "2")
    assert both == [("half:0-0", "ROLLED_BACK"), ("half:0-1", "ROLLED_BACK")]
    asked = tried(conf, "check", "resend", "--group", "shop", "--max", "9")
    assert asked == [(target, "resent") for target in ("half:0-0", "half:0-1", "half:0-4")]
    text = said("tx", "commit", "--group", "shop", "--max", "2", *BY, "--conf", conf)
    assert "2 would be written; --yes writes them; beyond --max: 1 more" in text


def test_keys_are_named_by_one_of_their_words(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    job.half(keys="order-7 vip")
    job.half(keys="order-77")
    job.run()
    for keys, wanted in (("order-7", 1), ("order-7 vip", 1), ("vip", 1), ("order", 0)):
        filters = Filters(keys=keys)
        assert len(pending_targets(job.lake, filters)) == wanted
        assert len(list_stored(job.lake, filters)[0]) == wanted

    job.run(60_001)
    dead = [str(half) for half in dead_targets(job.lake, Filters(keys="order-7"))]
    assert dead == ["half:0-0"]


def test_the_dead_are_resumed_by_filters(job: InMemoryJob, conf: str) -> None:
    job.run(60_001)  # all that was pending is given up
    found = tried(conf, "dead", "resume", "--older-than", "1s", "--max", "9")
    assert found == [("undeliverable:0", "still_undeliverable")]
    found = tried(conf, "dead", "resume", "--group", "shop", "--max", "9")
    assert found == [(target, "rearmed") for target in ("half:0-0", "half:0-1", "half:0-4")]
    assert tried(conf, "dead", "resume", "--keys", "order-1", "--max", "1") == [
        ("half:0-0", "rearmed")
    ]
    json_rows = txlake("dead", "resume", "--topic", "orders", "--max", "1", *BY, "--conf", conf)
    assert json_rows.exit_code == 0 and "beyond --max" in json_rows.stderr


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(("tx", "commit"), 2, id="neither a half nor a filter"),
        pytest.param(("tx", "commit", "0-0", "--group", "shop", "--max", "1"), 2, id="both"),
        pytest.param(("tx", "commit", "--group", "shop"), 2, id="no --max"),
        pytest.param(("tx", "commit", "0-0", "--yes"), 2, id="--yes of one half"),
        pytest.param(("dead", "resume"), 2, id="nothing to resume"),
        pytest.param(("dead", "resume", "--topic", "t", "--max", "0"), 2, id="none at most"),
        pytest.param(
            ("tx", "commit", "--group", "shop", "--max", "1", "--yes"), 1, id="Kafka is away"
        ),
    ],
)
def test_wrong_usage_is_told(conf: str, words: tuple[str, ...], code: int) -> None:
    result = txlake(*words, *BY, "--conf", conf)
    assert result.exit_code == code, result.output
