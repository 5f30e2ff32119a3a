"""Commands that list: topics, consumers, settings; one way to print rows, in four formats."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from pipelines.health import transactions
from pipelines.health.consumers import read_lags, read_unread
from pipelines.health.topics import read_topics
from pipelines.health.transactions import Filters, list_stored
from pipelines.operate.consumers import plan_reset, write_reset
from pipelines.output import ago, print_records, printable, size
from storage.lake import integrity
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.lake.table import queue_floor
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.operator import said
from txlake import Consumer, StaleGenerationError
from txlake.protocol import ALTER_TOPIC, CANCEL, COMMIT, CREATE_TOPIC, RESUME

HOSTILE = "=cmd|'/c calc'!A1\n\x1b[2J\u202egnp.exe,\""
NOW = START_AT + 90_000


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    """Three messages of topic orders, in queue 0 and 1, and one that is given up."""
    job = InMemoryJob(tmp_path / "lake", check_max=0)
    for number in range(3):
        job.half(f"t{number}", real_queue_id=number % 2, keys=HOSTILE)
    job.end(COMMIT, 0, 1, 2)
    job.half("lost", keys=HOSTILE)
    job.run(1_000)
    job.run(6_000)
    return job


def rows(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(said(*words, "-o", "json"))
    return found


def test_a_list_says_whether_and_where_a_message_was_delivered(job: InMemoryJob) -> None:
    words = ("tx", "list", "--since", "9999d", "--lake", job.lake.path)
    late, odd = job.half("late", delay_level=1), job.half("odd", real_queue_id=77)
    gone = job.half("gone", delay_level=18)
    job.end(COMMIT, late, odd, gone)
    job.command(RESUME, "half:0-3")
    job.run(7_000)
    found = {row["transaction_id"]: row for row in rows(*words)}
    assert {name: row["delivery"] for name, row in found.items()} == {
        "t0": "orders:0-0",
        "t1": "orders:1-0",
        "t2": "orders:0-1",
        "lost": None,
        "late": "delayed",
        "odd": "undeliverable",
        "gone": "delayed",
    }

    # A half that is pending again has both instants: of the record, and of the re-arm.
    again = found["lost"]
    assert (again["status"], again["first_stored_at"] < again["stored_at"]) == ("PENDING", True)
    assert found["t0"]["first_stored_at"] == found["t0"]["stored_at"]

    job.command(CANCEL, f"half:0-{gone}")
    job.run(60_000)
    found = {row["transaction_id"]: row for row in rows(*words)}
    assert re.fullmatch(r"orders:\d-\d", found["late"]["delivery"])
    assert found["gone"]["delivery"] == "cancelled"
    told = said("tx", "explain", f"0-{odd}", "--lake", job.lake.path)
    assert told.splitlines()[0].endswith(": COMMITTED, undeliverable")


def test_a_half_that_ends_while_a_list_is_read_has_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    half = job.half()
    job.run()
    latest_committed = transactions.latest_committed

    def latest_before_the_job_goes_on(lake: Lake) -> tuple[int, dict[int, Plan]]:
        monkeypatch.undo()
        latest = latest_committed(lake)
        job.end(COMMIT, half)
        job.run()
        return latest

    monkeypatch.setattr(transactions, "latest_committed", latest_before_the_job_goes_on)
    lake = Lake(job.lake.path)
    statuses = [list_stored(lake, Filters())[0][0]["status"] for _ in range(2)]
    assert statuses == ["PENDING", "COMMITTED"]


def test_a_half_that_was_resumed_counts_as_stored_then(job: InMemoryJob) -> None:
    def listed(topic: str | None = None) -> list[tuple[str, str]]:
        found, count = list_stored(job.lake, Filters(since_at=job.at - 3_600_000, topic=topic))
        assert count == len(found)
        return [(row["transaction_id"], row["status"]) for row in found]

    job.run(2 * 3_600_000)
    assert listed() == []

    job.command(RESUME, "half:0-3")
    job.half("new")
    job.run(1_000)
    assert listed() == [("new", "PENDING"), ("lost", "PENDING")]
    assert listed("others") == []


@pytest.mark.parametrize("ahead_ms", [30_000, 60_000, -60_000])
def test_a_list_since_an_instant_has_halves_of_a_broker_whose_clock_is_apart(
    tmp_path: Path, ahead_ms: int
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    stored_at = []
    for number in range(4):
        at = job.at + 20_000 + ahead_ms
        job.half(f"t{number}", stored_at=at)
        stored_at.append(at)
        job.run(20_000)

    for number, at in enumerate(stored_at):
        found, count = list_stored(Lake(job.lake.path), Filters(since_at=at))
        assert [row["transaction_id"] for row in found] == [f"t{n}" for n in range(number, 4)]
        assert count == len(found)


def test_topics_are_listed_with_what_they_hold_and_keep(job: InMemoryJob, conf: str) -> None:
    job.command(ALTER_TOPIC, "config:orders:retention.ms=-1")
    job.run()
    first, copies = rows("topic", "list", "--conf", conf)
    assert (first["topic"], first["queues"], first["messages"]) == ("orders", 4, 3)
    assert (first["oldest_at"], first["newest_at"]) == ("2026-01-01T00:00:01.000Z",) * 2
    assert (first["keeps_ms"], first["keeps_bytes"]) == (604_800_000, -1)  # the settings'
    assert copies["topic"] == "TRANS_CHECK_MAX_TIME_TOPIC"
    unknown, _ = rows("topic", "list", "--lake", job.lake.path)
    assert (unknown["keeps_ms"], unknown["keeps_bytes"]) == (None, None)


def test_a_list_of_topics_reads_epochs_once_however_many_topics_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = InMemoryJob(tmp_path / "lake")
    counts = []

    for topics in (1, 6):
        for number in range(topics):
            job.end(COMMIT, job.half(real_topic=f"topic{number}"))
        job.run()

        with monkeypatch.context() as patched:
            calls = count_calls(patched, integrity, "read_committed_tables")
            found = read_topics(Lake(job.lake.path))
        counts.append((len(found), len(calls)))

    assert counts == [(1, 1), (6, 1)]


def count_calls(patched: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[None]:
    """Return a list that gets an element with each call of a function of a module."""
    calls: list[None] = []
    function = getattr(module, name)

    def counted(*values: Any) -> Any:
        calls.append(None)
        return function(*values)

    patched.setattr(module, name, counted)
    return calls


def test_a_topic_whose_table_lacks_rows_is_not_listed(job: InMemoryJob, conf: str) -> None:
    (row, _) = rows("topic", "list", "--conf", conf)
    DeltaTable(job.lake.table_path(row["table"])).delete("queue_id = 0")

    text = said("topic", "list", "--conf", conf, code=1)
    assert f"is not whole: the table {row['table']} holds 1 row, and held 3" in text


def test_a_topic_is_described_queue_by_queue(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    found = rows("topic", "describe", "orders", *lake)
    assert [(row["queue_id"], row["begin_offset"], row["end_offset"]) for row in found] == [
        (0, 0, 2),
        (1, 0, 1),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert "there is no topic 'bills'" in said("topic", "describe", "bills", *lake, code=1)


def test_consumers_lag_by_what_they_have_not_committed(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    assert rows("lag", *lake) == rows("consumer", "list", *lake) == []
    queues, hour_ms = {"orders": [0, 1]}, 3_600_000
    with Consumer(
        job.lake.path, "points", ["orders"], queues=queues, session_timeout_ms=hour_ms
    ) as consumer:
        assert len(consumer.poll(5.0, 1)) == 1
        consumer.commit()
        (owner,) = {row["owner"] for row in rows("lag", *lake)}
        assert rows("consumer", "list", *lake)[0]["owners"] == [owner]
    lags = {row["queue_id"]: (row["lag"], row["owner"]) for row in rows("lag", *lake)}
    assert sum(lag for lag, _ in lags.values()) == 2
    assert {owner for _, owner in lags.values()} == {None}
    (group,) = rows("consumer", "list", *lake)
    assert (group["consumer_group"], group["topics"], group["queues"], group["lag"]) == (
        "points",
        ["orders"],
        2,
        2,
    )
    assert len(rows("lag", "--group", "points", "--topic", "orders", *lake)) == 2
    for words, answer in (
        (("--group", "nope"), "consumer group 'nope' has read nothing of the lake"),
        (("--topic", "nope"), "there is no topic 'nope'"),
        (("--group", "points", "--topic", "nope"), "has read nothing of topic 'nope'"),
    ):
        assert answer in said("lag", *words, *lake, "-o", "json", code=1)


def test_an_owner_whose_session_is_over_is_shown_as_none(job: InMemoryJob) -> None:
    lake = ("--lake", job.lake.path)
    for session_timeout_ms, is_shown in ((3_600_000, True), (1, False)):
        with Consumer(
            job.lake.path, "points", ["orders"], session_timeout_ms=session_timeout_ms
        ) as consumer:
            assert len(consumer.poll(5.0)) == 3
            time.sleep(0.002)
            owners = {row["owner"] is not None for row in rows("lag", *lake)}
            (group,) = rows("consumer", "list", *lake)
        assert (owners, bool(group["owners"])) == ({is_shown}, is_shown)


def test_status_names_consumers_that_lag_or_are_gone(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(later_s: int = 0) -> dict[str, str]:
        """Return the problems of consumers, as they are so long after the last commit."""
        with monkeypatch.context() as patched:
            patched.setattr("time.time_ns", lambda: committed_ns + later_s * 1_000_000_000)
            found = json.loads(said("status", "--lake", job.lake.path, "-o", "json"))["problems"]
        return {one["name"]: one["words"] for one in found if one["name"].startswith("consumer")}

    Consumer(job.lake.path, "others", ["orders"]).close()  # it gave its queues back
    with Consumer(
        job.lake.path, "points", ["orders"], session_timeout_ms=600_000, auto_offset_reset="latest"
    ) as consumer:
        committed_ns = time.time_ns()
        assert told() == {}  # it wants what comes from now on
        for queue_id in (0, 1):
            consumer.seek("orders", queue_id, 0)
        consumer.commit()
        committed_ns = time.time_ns()
        ((name, words),) = told().items()
        assert name == "consumer_lag"
        assert re.fullmatch(r"consumer group points is \S+ d behind: unread messages: 3", words)
        assert told(601) == {}  # its session has just ended: it can be starting again
        ((name, words),) = told(661).items()
        assert name == "consumer_gone"
        assert re.fullmatch(
            r"consumer group points has had no consumer for \S+ min, since one died: unread "
            "messages: 3",
            words,
        )
        assert len(consumer.poll(5.0)) == 3
        consumer.commit()
        assert told() == told(661) == {}


def test_a_message_waits_for_a_consumer_from_its_delivery_on(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("delayed", deliver_at=START_AT + 600_000, real_queue_id=0)
    job.end(COMMIT, 0)
    job.run()
    job.run(600_000)
    with Consumer(job.lake.path, "points", ["orders"]) as consumer:
        consumer.commit()
        (row,) = read_unread(job.lake, job.at)
    assert row["oldest_at"] == job.at > START_AT + 600_000
    assert (row["messages"], row["is_gone"]) == (1, False)


def test_where_a_queue_begins_is_looked_for_once_and_only_if_something_is_unread(
    job: InMemoryJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []

    def floor(handle: DeltaTable, queue_id: int) -> int:
        looks.append(queue_id)
        return queue_floor(handle, queue_id)

    monkeypatch.setattr("pipelines.health.consumers.queue_floor", floor)
    for group in ("one", "two", "three"):
        with Consumer(job.lake.path, group, ["orders"], max_poll_records=1) as consumer:
            assert len(consumer.poll(5.0)) == 1
            consumer.commit()
    read_lags(job.lake)
    unread = {row["queue_id"] for row in read_lags(job.lake) if row["lag"]}
    assert unread
    assert sorted(looks) == sorted([*unread, *unread])


def test_a_group_is_reset_when_none_of_its_consumers_is_active(job: InMemoryJob) -> None:
    reset = ("consumer", "reset", "points", "--topic", "orders", "--to")
    lake = ("--lake", job.lake.path)
    assert "has read nothing of topic orders" in said(*reset, "latest", *lake, code=1)
    with Consumer(job.lake.path, "points", ["orders"], session_timeout_ms=3_600_000) as consumer:
        assert len(consumer.poll(5.0)) == 3
        consumer.commit()
        refused = said(*reset, "earliest", "--yes", *lake, code=1)
        assert "close the consumers of the group first" in refused
        assert sum(row["lag"] for row in rows("lag", *lake)) == 0
    assert "4 would be written" in said(*reset, "earliest", *lake)
    assert sum(row["lag"] for row in rows("lag", *lake)) == 0  # nothing was written
    assert "has offsets 0 to 1, not 2" in said(*reset, "2", "--queue", "1", *lake, code=1)
    assert "has read nothing of queue 9" in said(*reset, "0", "--queue", "9", *lake, code=1)
    said(*reset, "middle", *lake, code=2)
    said(*reset, "earliest", "--queue", "0", "--yes", *lake)
    assert {row["queue_id"]: row["lag"] for row in rows("lag", *lake)} == {0: 2, 1: 0, 2: 0, 3: 0}
    with Consumer(job.lake.path, "points", ["orders"]) as consumer:
        assert [message.queue_offset for message in consumer.poll(5.0)] == [0, 1]


def test_a_queue_that_no_committed_epoch_has_made_is_not_reset(job: InMemoryJob) -> None:
    reset = ("consumer", "reset", "points", "--topic", "orders", "--lake", job.lake.path)
    job.command(CREATE_TOPIC, "topic:orders:8")
    job.run(commit=False)
    with Consumer(job.lake.path, "points", ["orders"], queues={"orders": [0, 5]}):
        pass
    before = job.lake.read("consumer_offsets").num_rows

    at = "2026-01-01T00:00Z"
    for words in (("--to", "latest"), ("--to", at), ("--to", "0", "--queue", "5")):
        told = said(*reset, *words, "--yes", code=1)
        assert "queue 5 of orders is of an epoch that is not committed: nothing was written" in told
        assert Lake(job.lake.path).read("consumer_offsets").num_rows == before
    assert "1 written" in said(*reset, "--to", "earliest", "--queue", "0", "--yes")


def test_a_consumer_that_was_not_seen_is_told_that_it_lost_its_queue(job: InMemoryJob) -> None:
    with Consumer(job.lake.path, "points", ["orders"], session_timeout_ms=1) as consumer:
        assert len(consumer.poll(5.0)) == 3
        said(
            "consumer",
            "reset",
            "points",
            "--topic",
            "orders",
            "--to",
            "latest",
            "--yes",
            "--session",
            "1ms",
            "--lake",
            job.lake.path,
            code=2,
        )
        lake = Lake(job.lake.path)
        write_reset(lake, plan_reset(lake, "points", "orders", "latest", []), session_ms=60_000)
        with pytest.raises(StaleGenerationError):
            consumer.commit()


def test_settings_are_shown_without_their_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHT_PASSWORD", "hunter2hunter2")
    monkeypatch.setenv("NIGHT_KEY", "hunter2" * 5)
    path = tmp_path / "job.toml"
    path.write_text(
        '[lake]\npath = "s3://ada:hunter2hunter2@bucket/lake"\n'
        '[kafka]\nbootstrap_servers = "k:1"\n'
        '[kafka.client]\n"sasl.password_env" = "NIGHT_PASSWORD"\n"sasl.username" = "ada"\n'
        '"some.new.setting" = "hunter2hunter2"\n'
        '[lake.store]\nregion = "eu-1"\nnew_option = "hunter2hunter2"\n'
        '[security.keys.shop]\nk1_env = "NIGHT_KEY"\n'
        '[security.operators]\nada_env = "NIGHT_KEY"\n'
        '[spark]\n"spark.hadoop.fs.s3a.secret.key_env" = "NIGHT_PASSWORD"\n'
        '"spark.executorEnv.SERVICE" = "hunter2hunter2"\n"spark.driver.memory" = "1g"\n'
        '"spark.driver.extraJavaOptions" = "-Xss1m -Djavax.net.ssl.keyStorePassword=hunter2"\n'
    )
    found = {
        (row["section"], row["key"]): row for row in rows("config", "show", "--conf", str(path))
    }
    assert found["kafka.client", "sasl.password_env"]["value"] == "NIGHT_PASSWORD"
    assert found["security.keys", "shop"]["value"] == {"k1_env": "NIGHT_KEY"}
    assert found["spark", "spark.hadoop.fs.s3a.secret.key_env"]["value"] == "NIGHT_PASSWORD"
    assert found["spark", "spark.driver.memory"]["value"] == "1g"
    assert found["spark", "spark.driver.extraJavaOptions"]["value"] == (
        "-Xss1m -Djavax.net.ssl.keyStorePassword=***"
    )
    assert found["kafka.client", "sasl.username"]["value"] == "ada"
    assert found["lake.store", "region"]["value"] == "eu-1"
    for name in (
        ("kafka.client", "some.new.setting"),
        ("lake.store", "new_option"),
        ("spark", "spark.executorEnv.SERVICE"),
    ):
        assert found[name]["value"] == "***"
    assert found["transaction", "check_max"] == {
        "section": "transaction",
        "key": "check_max",
        "value": 15,
        "is_default": True,
    }
    assert not found["kafka", "bootstrap_servers"]["is_default"]
    changed = rows("config", "show", "--changed", "--conf", str(path))
    assert {row["key"] for row in changed} == {
        "path",
        "bootstrap_servers",
        "sasl.password_env",
        "sasl.username",
        "some.new.setting",
        "region",
        "new_option",
        "shop",
        "ada_env",
        "spark.hadoop.fs.s3a.secret.key_env",
        "spark.executorEnv.SERVICE",
        "spark.driver.memory",
        "spark.driver.extraJavaOptions",
    }
    for output in ("table", "json", "jsonl", "csv"):
        assert "hunter2" not in said("config", "show", "--conf", str(path), "-o", output)


def test_of_a_publisher_and_a_topic_what_has_its_default_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text('{"properties": {"a": {}}}')
    conf = tmp_path / "job.toml"
    conf.write_text(
        '[lake]\npath = "lake"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
        '[publish.a]\n[publish.b]\nkey = "none"\nbootstrap_servers = "127.0.0.1:2"\n'
        '[topics.orders]\nbody = "json"\nschema = "orders.json"\n'
    )
    rows = json.loads(said("config", "show", "--changed", "--conf", str(conf), "-o", "json"))
    changed = {(row["section"], row["key"]) for row in rows}
    assert changed == {
        ("lake", "path"),
        ("kafka", "bootstrap_servers"),
        ("publish.b", "key"),
        ("publish.b", "bootstrap_servers"),
        ("topics.orders", "body"),
        ("topics.orders", "schema"),
    }


def test_an_unknown_key_of_a_publisher_has_its_nearest(tmp_path: Path) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(
        '[lake]\npath = "lake"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
        '[publish.a]\ndestinaton = "x-{topic}"\n'
    )
    text = said("config", "show", "--conf", str(conf), code=1)
    assert text.endswith("; did you mean destination?\n")


def test_a_default_that_a_file_names_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(
        '[lake]\npath = "lake"\nretention_ms = 604800000\n[kafka]\nbootstrap_servers = "k:1"\n'
        "[transaction]\ncheck_max = 15\ncheck_interval_ms = 60000\n"
        "[security]\nrequire_transaction_id = true\n"
    )
    changed = rows("config", "show", "--changed", "--conf", str(path))
    assert [row["key"] for row in changed] == ["path", "bootstrap_servers", "check_interval_ms"]


def test_settings_are_validated_without_reaching_anything(conf: str, tmp_path: Path) -> None:
    assert "the settings can be used" in said("config", "validate", "--conf", conf)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[lake]\npath = "lake"\nretention = 1\n')
    assert "[lake] retention is unknown" in said("config", "validate", "--conf", str(wrong), code=1)
    said("config", "validate", code=2)


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv"])
def test_what_a_producer_sent_stays_one_row_in_every_format(job: InMemoryJob, output: str) -> None:
    text = said("dead", "list", "--lake", job.lake.path, "-o", output)
    assert not set("\x1b\u202e") & set(text)
    if output == "table":
        heading, row = text.splitlines()
        assert row.startswith("half:0-3") and "\\u000a\\u001b[2J\\u202egnp" in row
    elif output == "csv":
        heading, row = csv.reader(io.StringIO(text))  # type: ignore[assignment]
        cell = dict(zip(heading, row, strict=True))["keys"]
        assert cell.startswith("'=cmd") and "\n" not in cell  # no spreadsheet runs it
    else:
        (record,) = json.loads(text) if output == "json" else [json.loads(text)]
        assert record["keys"] == HOSTILE


def test_tables_tell_time_from_now_and_data_tells_it_in_full(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {
        "since": START_AT,
        "deliver_at": NOW + 7_200_000,
        "delay_ms": 1_500,
        "file_bytes": 1536,
        "is_late": True,
        "owners": ["a", "b"],
        "keeps_ms": -1,
        "none": None,
    }
    print_records(list(row), [row], "table", NOW)
    headings, shown = capsys.readouterr().out.splitlines()
    assert headings.split() == [
        "since",
        "deliver_at",
        "delay_time",
        "file_size",
        "is_late",
        "owners",
        "keeps_time",
        "none",
    ]
    assert re.split(" {2,}", shown) == [
        "1.5 min ago",
        "in 2 h",
        "1.5 s",
        "1.5 KiB",
        "true",
        "a, b",
        "for ever",
    ]
    print_records(list(row), [row], "jsonl", NOW)
    assert json.loads(capsys.readouterr().out) == {
        **row,
        "since": "2026-01-01T00:00:00.000Z",
        "deliver_at": "2026-01-01T02:01:30.000Z",
    }


def test_spans_and_sizes_are_in_the_largest_unit_they_fill() -> None:
    assert ago(1_000, 1_000) == "0 ms ago"
    assert ago(0, 59_999) == "60 s ago"
    assert ago(0, 60_000) == "1 min ago"
    assert [size(count) for count in (0, 1_023, 1_024, 1 << 40)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1 TiB",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("tx", "list", "--group"), ("tx", "list", "--pending", "--topic"), ("tx", "list", "--keys"),
        ("dead", "list", "--group"), ("schedule", "list", "--topic"),
        ("conflicts", "list", "--group"),
    ],
)  # fmt: skip
def test_an_empty_list_says_what_was_asked_for(words: tuple[str, ...], job: InMemoryJob) -> None:
    text = said(*words, "nope", "--lake", job.lake.path)
    assert text.endswith(f"; asked for {words[-1].strip('-')} 'nope' only\n")


def test_a_reason_that_no_conflict_has_is_refused(job: InMemoryJob) -> None:
    text = said("conflicts", "list", "--reason", "nope", "--lake", job.lake.path, code=1)
    assert "no operation has the reason 'nope': one of unreadable_operation, " in text


def test_an_empty_list_is_a_sentence_for_people_and_no_row_for_programs(tmp_path: Path) -> None:
    lake = ("--lake", InMemoryJob(tmp_path / "lake").lake.path)
    texts = {
        output: said("dead", "list", *lake, "-o", output) for output in ("table", "json", "jsonl")
    }
    assert texts == {"table": "no dead messages\n", "json": "[]\n", "jsonl": ""}
    assert said("dead", "list", *lake, "-o", "csv").startswith("target,real_topic,")
    said("dead", "list", *lake, "-o", "xml", code=2)


@pytest.mark.parametrize(
    "unseen",
    ["\u061c", "\u200b", "\u200d", "\u2060", "\ufeff", "\xad", "\u3164", "\U000e0041"],
)
def test_what_nobody_sees_is_shown_as_its_code(unseen: str) -> None:
    shown = printable(f"ord{unseen}ers")
    assert shown.isascii() and shown == f"ord{unseen.encode('unicode_escape').decode()}ers".replace(
        "\\xad", "\\u00ad"
    )
    assert printable("Zürich ☕ 注文") == "Zürich ☕ 注文"
