"""The operator's command line: lists, dry runs, exit codes, sentences. No Kafka is needed here."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipelines.cli import main
from pipelines.dead import read_dead
from pipelines.delays import read_waiting
from pipelines.operator_records import Record
from pipelines.screen import print_rows
from tests.paper_job import START_AT, PaperJob
from txlake.protocol import CANCEL, COMMIT, CREATE_TOPIC, DECISIONS, RESUME, ROLLBACK


@pytest.fixture
def job(tmp_path: Path) -> PaperJob:
    return PaperJob(tmp_path / "lake", check_max=0, auto_create_topics=False)


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """Settings of a job whose Kafka nobody reaches."""
    path = tmp_path / "job.toml"
    path.write_text(
        f'[lake]\npath = "{tmp_path / "lake"}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
    )
    return str(path)


def txlake(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), prog_name="txlake")


def said(*words: str, code: int = 0) -> str:
    result = txlake(*words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def dry(conf: str, *words: str, code: int = 0) -> dict[str, Any]:
    """Run a command that writes, as a dry run."""
    output = said(*words, "--reason", "why", "--actor", "ada", "--dry-run", "--conf", conf,
                  "-o", "json", code=code)  # fmt: skip
    told: dict[str, Any] = json.loads(output)
    assert (told["offset"], told["result"]) == (None, None)
    return told


def expected(conf: str, *words: str) -> str:
    return str(dry(conf, *words)["expected"])


# tx explain.


def test_explain_prints_aligned_text_or_json(job: PaperJob, conf: str) -> None:
    job.half("tx-1", keys="order-1")
    job.run()
    text = said("tx", "explain", "tx-1", "--conf", conf)
    assert text.startswith("transaction tx-1, half 0-0, group g: PENDING\n")
    assert "when                      epoch  what\n" in text
    told = json.loads(said("tx", "explain", "0-0", "--lake", job.lake.path, "-o", "json"))
    assert (told["epoch"], told["target"]) == (1, "0-0")
    (story,) = told["transactions"]
    assert (story["transaction_id"], story["status"]) == ("tx-1", "PENDING")
    assert [event["event"] for event in story["events"]] == ["half"]
    assert [wait["code"] for wait in story["waits"]] == ["no_end", "immune"]
    assert story["waits"][1]["until"] == "2026-01-01T00:00:06.001Z"


def test_explain_finds_by_keys(job: PaperJob) -> None:
    job.half("tx-1", keys="order-1")
    job.run()
    lake = ("--lake", job.lake.path)
    assert "half:0-0" in said("tx", "explain", "--keys", "order-1", *lake)
    (row,) = json.loads(said("tx", "explain", "--keys", "order-1", *lake, "-o", "json"))
    assert (row["target"], row["transaction_id"]) == ("half:0-0", "tx-1")
    assert said("tx", "explain", "--keys", "no", *lake, code=1) == (
        f"Error: no message in the lake {job.lake.path} has the keys 'no'\n"
    )


def test_what_is_not_there_is_one_sentence_and_exit_code_1(job: PaperJob, tmp_path: Path) -> None:
    assert said("tx", "explain", "nobody", "--lake", job.lake.path, code=1) == (
        f"Error: no half and no schedule record has transaction id nobody in the lake "
        f"{job.lake.path}, which stands at epoch 0\n"
    )
    nowhere = str(tmp_path / "nowhere")
    assert said("tx", "explain", "x", "--lake", nowhere, code=1) == (
        f"Error: {nowhere} is not a lake: `txlake run` makes one there\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("tx", "explain", "x"),
        ("tx", "explain", "--lake", "LAKE"),
        ("tx", "explain", "x", "--keys", "y", "--lake", "LAKE"),
        ("tx", "explain", "half:x", "--lake", "LAKE"),
        ("tx", "commit", "0-0", "--conf", "CONF"),
        ("tx", "commit", "0-0", "--reason", " ", "--conf", "CONF"),
        ("tx", "commit", "0-0", "--reason", "why", "--actor", "", "--conf", "CONF"),
        ("tx", "rollback", "some-id", "--reason", "why", "--conf", "CONF"),
        ("tx", "rollback", "schedule:0-0", "--reason", "why", "--conf", "CONF"),
        ("dead", "list"),
        ("dead", "resume", "0-0", "--reason", "why", "--conf", "CONF"),
        ("dead", "resume", "undeliverable:x", "--reason", "why", "--conf", "CONF"),
        ("dead", "list", "--limit", "0", "--lake", "LAKE"),
        ("schedule", "cancel", "undeliverable:0", "--reason", "why", "--conf", "CONF"),
        ("topic", "create", "a b", "--queues", "1", "--reason", "why", "--conf", "CONF"),
        ("topic", "create", "a", "--queues", "0", "--reason", "why", "--conf", "CONF"),
    ],
)
def test_wrong_usage_is_exit_code_2(job: PaperJob, conf: str, words: tuple[str, ...]) -> None:
    named = {"LAKE": job.lake.path, "CONF": conf}
    result = txlake(*(named.get(word, word) for word in words))
    assert result.exit_code == 2
    assert "Error: " in result.output


# tx commit, tx rollback: the dry run is the job's own decision.


def test_a_dry_run_says_what_would_be_written(job: PaperJob, conf: str) -> None:
    job.command(CREATE_TOPIC, "topic:orders:2")
    job.half("other")
    job.half("tx-1", queue=1, producer_group="shop")
    job.run()
    told = dry(conf, "tx", "commit", "1-0")
    assert (told["topic"], told["partition"], told["body"]) == (
        "RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, "0,",
    )  # fmt: skip
    assert told["headers"] == {
        "TAGS": "d", "PGROUP": "shop", "TRAN_TYPE": "8", "UNIQ_KEY": "tx-1", "ACTOR": "ada",
        "REASON": "why", "TXV": "1",
    }  # fmt: skip
    assert told["expected"] == ("COMMITTED, cause operator; delivered to topic orders, queue 0")
    assert told["epoch"] == 1
    assert expected(conf, "tx", "rollback", "half:1-0") == "ROLLED_BACK, cause operator"
    text = said("tx", "rollback", "1-0", "--reason", "why", "--dry-run", "--conf", conf)
    assert text.startswith("would write to RMQ_SYS_TRANS_OP_HALF_TOPIC partition 1: body 0,; ")


def test_a_dry_run_says_what_the_rules_make_of_it(tmp_path: Path, conf: str) -> None:
    job = PaperJob(tmp_path / "lake", check_max=0)
    job.end(COMMIT, job.half("ended"))
    job.half("delayed", deliver_at=START_AT * 2)
    job.half("undeliverable", real_queue_id=99)
    job.half("given-up", immunity_ms=0)
    job.half("first-of-three", tran_size=3, tran_seq=1)
    job.half("unreadable", error="bad_set")
    job.run()
    assert expected(conf, "tx", "commit", "0-0").startswith("duplicate_end: ended before")
    assert expected(conf, "tx", "rollback", "0-0").startswith("conflicting_end: ended before")
    assert "; delayed until 20" in expected(conf, "tx", "commit", "0-1")
    assert expected(conf, "tx", "commit", "0-2").endswith("; undeliverable (queue_out_of_range)")
    assert expected(conf, "tx", "commit", "0-3").startswith("COMMITTED, cause late_end")
    assert expected(conf, "tx", "commit", "0-4") == (
        "waits: its set is incomplete, TRAN_SEQ 0, 2 missing"
    )
    assert expected(conf, "tx", "rollback", "0-4") == "ROLLED_BACK, cause operator"
    refused = said("tx", "commit", "0-5", "--reason", "why", "--conf", conf, code=1)
    assert refused == (
        "Error: half:0-5 cannot be read (bad_set): no operation can end it, nothing was written\n"
    )


def test_a_waiting_operation_comes_before_the_operators(tmp_path: Path, conf: str) -> None:
    job = PaperJob(tmp_path / "lake")
    job.half("s", tran_size=2, tran_seq=0)
    job.end(COMMIT, 0)
    job.run()
    assert expected(conf, "tx", "commit", "0-0").startswith("waits")
    assert expected(conf, "tx", "rollback", "0-0").startswith("waits")


def test_an_ended_set_is_ended_for_each_of_its_halves(tmp_path: Path, conf: str) -> None:
    job = PaperJob(tmp_path / "lake")
    for seq in (0, 1, 1):
        job.half("s", tran_size=2, tran_seq=seq)
    job.end(ROLLBACK, 0)
    job.run()
    for offset in range(3):
        assert expected(conf, "tx", "commit", f"0-{offset}").startswith("conflicting_end")


def test_a_half_that_is_not_there_is_refused(job: PaperJob, conf: str) -> None:
    job.half()
    job.run()
    words = ("--reason", "why", "--conf", conf)
    assert said("tx", "commit", "0-1", *words, code=1) == (
        f"Error: there is no half 0-1 in the lake {job.lake.path}, which stands at epoch 1: that "
        "queue is landed up to offset 1\n"
    )
    for group, command in (("dead", "resume"), ("schedule", "cancel")):
        assert "there is no half 0-1" in said(group, command, "half:0-1", *words, code=1)
    assert said("dead", "resume", "undeliverable:0", *words, code=1) == (
        "Error: there is no offset 0 in TRANS_UNDELIVERABLE_TOPIC of the lake "
        f"{job.lake.path}: nothing was written\n"
    )


def test_a_kafka_that_does_not_answer_is_one_sentence(
    job: PaperJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.operator_records._TIMEOUT_S", 0.5)
    job.half()
    job.run()
    output = said("tx", "commit", "0-0", "--reason", "why", "--conf", conf, code=1)
    assert output.startswith("Error: Kafka at 127.0.0.1:1 did not answer: ")
    assert len(output.splitlines()) == 1


# Waiting for what the job makes of a record: here the paper job lands it.


@pytest.fixture
def landing(job: PaperJob, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Land what a command writes at once; keep what was written."""
    written: list[Record] = []

    def write(_kafka: object, record: Record, _cluster_id: str) -> int:
        written.append(record)
        headers = record.texts()
        if record.kind == "admin":
            offset = job.command(headers["COMMAND"], headers["TARGET"], headers["ACTOR"])
        else:
            offset = job.end(
                DECISIONS[headers["TRAN_TYPE"]], int((record.value or b"").strip(b",")),
                queue=record.partition, group=headers["PGROUP"], actor=headers["ACTOR"],
            )  # fmt: skip
        job.run()
        return offset

    monkeypatch.setattr("pipelines.operator_records.write", write)
    return written


def wrote(conf: str, *words: str, code: int = 0) -> str:
    return said(*words, "--reason", "why", "--conf", conf, "--wait-s", "5", code=code)


def test_the_result_is_waited_for_and_printed(
    job: PaperJob, conf: str, landing: list[Record]
) -> None:
    job.half("tx-1")
    job.half("one-of-two", tran_size=2, tran_seq=0)
    job.run()
    assert "the job says: COMMITTED, cause operator\n" in wrote(conf, "tx", "commit", "0-0")
    assert wrote(conf, "tx", "rollback", "0-0", code=1).endswith(
        "the job says: conflicting_end\nError: it changed nothing: conflicting_end\n"
    )
    assert "the job says: waits\n" in wrote(conf, "tx", "commit", "0-1")
    assert "the job says: created\n" in wrote(conf, "topic", "create", "orders", "--queues", "2")
    assert "the job says: unchanged\n" in wrote(conf, "topic", "create", "orders", "--queues", "1")
    assert wrote(conf, "dead", "resume", "half:0-1", code=1).endswith(
        "Error: it changed nothing: not_discarded\n"
    )
    assert {record.texts()["ACTOR"] for record in landing} == {getpass.getuser()}
    assert [record.partition for record in landing] == [0] * 6


def test_a_result_that_does_not_come_is_one_sentence(
    job: PaperJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.half("tx-1")
    job.run()
    monkeypatch.setattr("pipelines.operator_records.write", lambda *_: 77)
    words = ("--reason", "why", "--conf", conf)
    late = "Error: no result within 0.1 s: the record is written; is the job running?\n"
    for command in (("tx", "commit", "0-0"), ("topic", "create", "a", "--queues", "1")):
        output = said(*command, *words, "--wait-s", "0.1", code=1)
        assert output.endswith(late)
        assert "offset 77" in output
        assert "the job says" not in said(*command, *words)  # does not wait: exit code 0


def test_a_user_without_a_name_must_say_who(
    job: PaperJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError(4711)

    monkeypatch.setattr("getpass.getuser", nobody)
    output = said(
        "topic", "create", "a", "--queues", "1", "--reason", "why", "--conf", conf, code=2
    )
    assert "the login user is not known: say who with --actor" in output


def test_a_terminal_gets_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_rows(("target", "keys"), [("half:0-1", "[red]"), ("half:0-2", None)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if "half" in line] == [["half:0-1", "[red]"],
                                                                  ["half:0-2"]]  # fmt: skip


# dead list, dead resume.


def dead(job: PaperJob) -> list[tuple[str, str]]:
    return [(row["target"], row["reason"]) for row in read_dead(job.lake)]


def test_what_is_dead_is_listed_until_it_is_ended_or_delivered(job: PaperJob, conf: str) -> None:
    assert said("dead", "list", "--conf", conf) == "nothing is dead\n"
    for transaction_id in ("late", "again", "stays"):
        job.half(transaction_id, keys=f"order-{transaction_id}", producer_group=transaction_id)
    for seq in range(2):
        job.half("set", queue=1, tran_size=2, tran_seq=seq)
    job.end(COMMIT, job.half("stuck", real_topic="closed"))
    job.run(6_001)
    everything = [("half:0-0", "check_max"), ("half:0-1", "check_max"), ("half:0-2", "check_max"),
                  ("half:1-0", "check_max"), ("half:1-1", "check_max"),
                  ("undeliverable:0", "topic_not_allowed")]  # fmt: skip
    assert dead(job) == everything
    assert expected(conf, "dead", "resume", "half:0-0") == "rearmed: the half is pending again"
    assert expected(conf, "dead", "resume", "undeliverable:0").startswith("still_undeliverable")

    job.end(COMMIT, 0, group="late")
    job.command(RESUME, "half:0-01")
    job.command(RESUME, "half:1-1")
    job.command(CREATE_TOPIC, "topic:closed:1")
    job.run()
    assert dead(job) == [("half:0-2", "check_max"), ("undeliverable:0", "topic_not_allowed"),
                         ("undeliverable:1", "topic_not_allowed")]  # fmt: skip
    assert expected(conf, "dead", "resume", "undeliverable:0") == (
        "resumed: the message takes part in that epoch's delivery; delivered to topic closed, "
        "queue 0"
    )
    assert expected(conf, "dead", "resume", "half:0-0").startswith("not_discarded")

    job.command(RESUME, "undeliverable:0")
    job.run(6_001)
    assert dead(job) == [("half:0-2", "check_max"), ("half:0-1", "check_max"),
                         ("half:1-0", "check_max"), ("half:1-1", "check_max"),
                         ("undeliverable:1", "topic_not_allowed")]  # fmt: skip
    assert expected(conf, "dead", "resume", "undeliverable:0").startswith("not_undeliverable")

    job.end(COMMIT, 1, group="again")
    job.run(commit=False)
    assert ("half:0-1", "check_max") in dead(job)  # that epoch is not committed yet


def test_the_dead_list_is_filtered_and_cut(job: PaperJob) -> None:
    for number in range(4):
        job.half(f"t{number}", producer_group=f"g{number % 2}", real_topic=f"r{number // 2}",
                 keys=f"order-{number}")  # fmt: skip
    job.run(6_001)
    lake = ("--lake", job.lake.path)

    def targets(*words: str) -> list[str]:
        output = said("dead", "list", *words, *lake, "-o", "json")
        return [row["target"] for row in json.loads(output)]

    assert targets() == ["half:0-0", "half:0-1", "half:0-2", "half:0-3"]
    assert targets("--group", "g1") == ["half:0-1", "half:0-3"]
    assert targets("--topic", "r1", "--group", "g1") == ["half:0-3"]
    text = said("dead", "list", "--limit", "1", *lake)
    assert text.splitlines()[1].split() == [
        "half:0-0", "r0", "g0", "t0", "order-0", "check_max", "2026-01-01T00:00:06.001Z",
    ]  # fmt: skip
    assert text.splitlines()[2].startswith("3 more: ")


# schedule list, schedule cancel.


def test_what_waits_is_counted_by_level_with_the_next_due(tmp_path: Path, conf: str) -> None:
    job = PaperJob(tmp_path / "lake", delay_levels_ms=(5_000, 10_000))
    job.schedule(queue=0, delay_level=1, keys="k1", producer_group="a")
    job.schedule(queue=1, delay_level=9, real_topic="other")
    job.schedule(queue=0, deliver_at=START_AT + 60_000)
    job.schedule(queue=0)  # no delay: due at once
    job.end(COMMIT, job.half(delay_level=2, keys="k2"))
    job.run()
    waiting = read_waiting(job.lake)
    assert [(row["target"], row["level"], row["keys"]) for row in waiting.messages] == [
        ("schedule:0-0", 1, "k1"), ("schedule:1-0", 2, None), ("half:0-0", 2, "k2"),
        ("schedule:0-1", None, None),
    ]  # fmt: skip
    assert waiting.levels == [
        {"level": 1, "waiting": 1, "next_at": START_AT + 5_000},
        {"level": 2, "waiting": 2, "next_at": START_AT + 10_000},
        {"level": None, "waiting": 1, "next_at": START_AT + 60_000},
    ]
    told = json.loads(said("schedule", "list", "--conf", conf, "-o", "json"))
    assert told["count"] == 4
    assert told["levels"][1] == {
        "level": 2, "delay": "10 s", "waiting": 2, "next_at": "2026-01-01T00:00:10.000Z",
    }  # fmt: skip
    for words, count in (
        (("--topic", "other"), 1), (("--group", "a"), 1), (("--level", "2"), 2),
        (("--level", "0"), 1), (("--topic", "none"), 0), (("--limit", "1"), 4),
    ):  # fmt: skip
        output = said("schedule", "list", *words, "--conf", conf, "-o", "json")
        assert json.loads(output)["count"] == count, words
    text = said("schedule", "list", "--limit", "1", "--conf", conf)
    assert "DELIVER_AT" in text
    assert "3 more: " in text

    assert expected(conf, "schedule", "cancel", "half:0-0").startswith("cancelled: ")
    assert expected(conf, "schedule", "cancel", "schedule:0-2").startswith("not_delayed: ")
    job.command(CANCEL, "half:0-0")
    job.run(5_000)
    targets = [row["target"] for row in read_waiting(job.lake).messages]
    assert targets == ["schedule:1-0", "schedule:0-1"]
    assert expected(conf, "schedule", "cancel", "half:0-0").startswith("not_delayed: ")


def test_a_lake_where_nothing_waits_says_so(job: PaperJob, conf: str) -> None:
    job.run()
    assert said("schedule", "list", "--conf", conf) == "no delayed message waits\n"


# topic create.


def test_a_topic_is_made_grown_or_left(job: PaperJob, conf: str) -> None:
    def create(queues: int, name: str = "orders") -> str:
        return expected(conf, "topic", "create", name, "--queues", str(queues))

    assert create(2).startswith("created: ")
    job.command(CREATE_TOPIC, "topic:orders:2")
    job.run()
    assert create(2).startswith("unchanged: ")
    assert create(3).startswith("grown: ")
    assert create(1, "TRANS_CHECK_MAX_TIME_TOPIC").startswith("bad_target: ")
    told = dry(conf, "topic", "create", "orders", "--queues", "3")
    assert (told["topic"], told["partition"], told["body"]) == ("TXLAKE_ADMIN", 0, None)
    assert told["headers"] == {
        "COMMAND": "CREATE_TOPIC", "TARGET": "topic:orders:3", "ACTOR": "ada", "REASON": "why",
        "TXV": "1",
    }  # fmt: skip
