"""Commands that write: what they would write, what the rules make of it, exit codes, sentences."""

from __future__ import annotations

import getpass
import json
from pathlib import Path

import pytest

from pipelines.operate.records import Record
from tests.support.in_memory_job import START_AT, InMemoryJob
from tests.support.operator import dry, expected, said, txlake, write_conf
from txlake.protocol import COMMIT, CREATE_TOPIC, DECISIONS, ROLLBACK


@pytest.fixture
def job(tmp_path: Path) -> InMemoryJob:
    return InMemoryJob(tmp_path / "lake", check_max=0, auto_create_topics=False)


WHY = ("--reason", "why", "--conf", "CONF")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("tx", "explain", "x"), id="no lake"),
        pytest.param(("tx", "explain", "--lake", "LAKE"), id="no target"),
        pytest.param(("tx", "explain", "x", "--keys", "y", "--lake", "LAKE"), id="two targets"),
        pytest.param(("tx", "explain", "half:x", "--lake", "LAKE"), id="no such target"),
        pytest.param(("tx", "commit", "0-0", "--conf", "CONF"), id="no reason"),
        pytest.param(("tx", "commit", "0-0", "--reason", " ", "--conf", "CONF"), id="empty reason"),
        pytest.param(("tx", "commit", "0-0", "--actor", "", *WHY), id="empty actor"),
        pytest.param(("tx", "rollback", "half:x", *WHY), id="no half"),
        pytest.param(("tx", "rollback", "schedule:0-0", *WHY), id="a schedule record is no half"),
        pytest.param(("dead", "list"), id="a list of no lake"),
        pytest.param(("dead", "resume", "schedule:0-0", *WHY), id="that is not dead"),
        pytest.param(("dead", "resume", "undeliverable:x", *WHY), id="an offset is a number"),
        pytest.param(("dead", "list", "--limit", "0", "--lake", "LAKE"), id="a list of nothing"),
        pytest.param(("schedule", "cancel", "undeliverable:0", *WHY), id="that is not delayed"),
        pytest.param(("topic", "create", "a b", "--queues", "1", *WHY), id="no topic's name"),
        pytest.param(("topic", "create", "a", "--queues", "0", *WHY), id="a topic has a queue"),
        pytest.param(("topic", "alter", "a", *WHY), id="nothing to alter"),
        pytest.param(("topic", "alter", "a", "--retention", "7", *WHY), id="a span has a unit"),
        pytest.param(
            ("topic", "alter", "a", "--retention", "6d", *WHY),
            id="less than a Spark stream may be away",
        ),
        pytest.param(("topic", "alter", "a", "--retention-bytes", "1GB", *WHY), id="no such unit"),
        pytest.param(
            ("topic", "alter", "a", "--retention-bytes", "999999999TiB", *WHY),
            id="more bytes than a command can say",
        ),
        pytest.param(("broker", "--data-dir", ""), id="no name of a folder"),
        pytest.param(("config", "validate", "--conf", ""), id="no name of a file"),
    ],
)
def test_wrong_usage_is_exit_code_2(job: InMemoryJob, conf: str, words: tuple[str, ...]) -> None:
    named = {"LAKE": job.lake.path, "CONF": conf}
    result = txlake(*(named.get(word, word) for word in words))
    assert result.exit_code == 2
    assert "Error: " in result.output


def test_more_bytes_than_a_command_can_say_are_refused_by_their_option(conf: str) -> None:
    for text, is_allowed in (("909494TiB", True), ("909495TiB", False)):
        words = ("topic", "alter", "a", "--retention-bytes", text, "--dry-run", *WHY[:-1], conf)
        result = txlake(*words)
        assert ("at most 909494TiB" in result.output) != is_allowed
        assert (result.exit_code == 2) != is_allowed


def test_a_name_that_is_none_of_a_topic_is_the_one_that_was_typed(conf: str) -> None:
    text = said("topic", "create", "a b", "--queues", "1", *WHY[:-1], conf, code=2)
    assert "'a b' is no name of a topic: [A-Za-z" in text


# tx commit, tx rollback: the dry run is the job's own decision.


def test_a_dry_run_says_what_would_be_written(job: InMemoryJob, conf: str) -> None:
    job.command(CREATE_TOPIC, "topic:orders:2")
    job.half("other")
    job.half("tx-1", queue=1, producer_group="shop")
    job.run()
    told = dry(conf, "tx", "commit", "1-0")
    assert (told["topic"], told["partition"], told["body"]) == (
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        1,
        "0,",
    )
    assert told["headers"] == {
        "TAGS": "d",
        "PGROUP": "shop",
        "TRAN_TYPE": "8",
        "UNIQ_KEY": "tx-1",
        "ACTOR": "ada",
        "REASON": "why",
        "TXV": "1",
    }
    assert told["expected"] == "COMMITTED, cause operator; delivered to topic orders, queue 0"
    assert told["epoch"] == 1
    assert expected(conf, "tx", "rollback", "half:1-0") == "ROLLED_BACK, cause operator"
    text = said("tx", "rollback", "1-0", "--reason", "why", "--dry-run", "--conf", conf)
    assert text.startswith("would write to RMQ_SYS_TRANS_OP_HALF_TOPIC partition 1: body 0,; ")


@pytest.fixture(scope="module")
def fates(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Settings of a lake with a half of each fate, in two queues."""
    folder = tmp_path_factory.mktemp("fates")
    job = InMemoryJob(folder / "lake", check_max=0)
    job.end(COMMIT, job.half("ended"))
    job.half("delayed", deliver_at=START_AT * 2)
    job.half("undeliverable", real_queue_id=99)
    job.half("given-up", immunity_ms=0)
    job.half("first-of-three", tran_size=3, tran_seq=1)
    job.half("unreadable", error="bad_set")
    job.half("waited-for", queue=1, tran_size=2, tran_seq=0)
    job.end(COMMIT, 0, queue=1)
    for seq in (0, 1, 1):
        job.half("rolled-back", queue=1, tran_size=2, tran_seq=seq)
    job.end(ROLLBACK, 1, queue=1)
    job.run()
    return write_conf(folder)


@pytest.mark.parametrize(
    ("words", "begins", "ends"),
    [
        pytest.param("commit 0-0", "duplicate_end: ended before", "", id="ended alike"),
        pytest.param("rollback 0-0", "conflicting_end: ended before", "", id="ended otherwise"),
        pytest.param("commit 0-1", "COMMITTED, cause operator; delayed until 20", "", id="delayed"),
        pytest.param("commit 0-2", "COMMITTED",
                     "; undeliverable (queue_out_of_range), queue 99 of 4", id="no such queue"),
        pytest.param("commit 0-3", "COMMITTED, cause late_end", "", id="given up before"),
        pytest.param("commit 0-4", "waits: its set is incomplete, TRAN_SEQ 0, 2 missing", "",
                     id="a COMMIT waits for the whole set"),
        pytest.param("rollback 0-4", "ROLLED_BACK, cause operator", "",
                     id="a ROLLBACK waits for nothing"),
        pytest.param("commit 1-0", "waits", "", id="a waiting COMMIT comes first"),
        pytest.param("rollback 1-0", "waits", "", id="a waiting COMMIT comes before a ROLLBACK"),
        pytest.param("commit 1-1", "conflicting_end", "", id="a set is ended, its first half"),
        pytest.param("commit 1-2", "conflicting_end", "", id="a set is ended, its last half"),
        pytest.param("commit 1-3", "conflicting_end", "", id="a set is ended, its duplicate"),
    ],
)  # fmt: skip
def test_a_dry_run_says_what_the_rules_make_of_it(
    fates: str, words: str, begins: str, ends: str
) -> None:
    told = expected(fates, "tx", *words.split())
    assert told.startswith(begins)
    assert told.endswith(ends)


def test_an_unreadable_half_is_refused(fates: str) -> None:
    assert said("tx", "commit", "0-5", "--reason", "why", "--conf", fates, code=1) == (
        "Error: half:0-5 cannot be read (bad_set): no operation can end it, nothing was written\n"
    )


def test_a_half_that_is_not_there_is_refused(job: InMemoryJob, conf: str) -> None:
    job.half()
    job.run()
    words = ("--reason", "why", "--conf", conf)
    assert said("tx", "commit", "0-1", *words, code=1) == (
        f"Error: there is no half 0-1 in the lake {job.lake.path}, which stands at epoch 1: that "
        "queue is landed up to offset 1\n"
    )
    for group, command in (("dead", "resume"), ("schedule", "cancel"), ("check", "resend")):
        assert "there is no half 0-1" in said(group, command, "half:0-1", *words, code=1)
    assert said("dead", "resume", "undeliverable:0", *words, code=1) == (
        "Error: there is no offset 0 in TRANS_UNDELIVERABLE_TOPIC of the lake "
        f"{job.lake.path}: nothing was written\n"
    )


def test_a_kafka_that_does_not_answer_is_one_sentence(
    job: InMemoryJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.kafka_client.connection._TIMEOUTS_S", (0.1, 0.1, 0.3))
    job.half()
    job.run()
    output = said("tx", "commit", "0-0", "--reason", "why", "--conf", conf, code=1)
    assert output.startswith("Error: Kafka at 127.0.0.1:1 did not answer (its topics): ")
    assert len(output.splitlines()) == 1


# Waiting for what the job makes of a record: here the paper job lands it.


@pytest.fixture
def landing(job: InMemoryJob, monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Land what a command writes at once; keep what was written."""
    written: list[Record] = []

    def write(_kafka: object, record: Record, _cluster_id: str, _security: object) -> int:
        written.append(record)
        headers = record.headers_as_text()
        if record.half_offset is None:
            offset = job.command(headers["COMMAND"], headers["TARGET"], headers["ACTOR"])
        else:
            offset = job.end(
                DECISIONS[headers["TRAN_TYPE"]],
                record.half_offset,
                queue=record.partition,
                group=headers["PGROUP"],
                actor=headers["ACTOR"],
            )
        job.run()
        return offset

    monkeypatch.setattr("pipelines.operate.records.write", write)
    return written


def wrote(conf: str, *words: str, code: int = 0) -> str:
    return said(*words, "--reason", "why", "--conf", conf, "--wait-s", "5", code=code)


def test_a_topic_keeps_messages_as_long_as_it_is_told(
    job: InMemoryJob, conf: str, landing: list[Record]
) -> None:
    alter = ("topic", "alter", "orders", "--retention", "30d")
    assert "there is no topic 'orders' in the lake" in wrote(conf, *alter, code=1)
    assert landing == []
    wrote(conf, "topic", "create", "orders", "--queues", "2")
    kept = ("--retention", "30d", "--retention-bytes", "10GiB")
    text = wrote(conf, "topic", "alter", "orders", *kept)
    assert "TARGET config:orders:retention.ms=2592000000;" in text
    assert "TARGET config:orders:retention.bytes=10737418240;" in text
    assert text.count("the job says: altered\n") == 2
    text = wrote(conf, "topic", "create", "bills", "--queues", "1", "--retention", "forever")
    assert text.endswith("the job says: altered\n")
    assert "TARGET config:bills:retention.ms=-1;" in text


def test_several_records_of_a_command_are_one_json_document(
    job: InMemoryJob, conf: str, landing: list[Record]
) -> None:
    job.run()
    kept = ("--retention", "30d", "--retention-bytes", "10GiB", "-o", "json")
    created = json.loads(wrote(conf, "topic", "create", "orders", "--queues", "2", *kept))
    assert [one["result"] for one in created] == ["created", "altered", "altered"]
    altered = json.loads(wrote(conf, "topic", "alter", "orders", *kept))
    assert [one["headers"]["TARGET"].partition("=")[0] for one in altered] == [
        "config:orders:retention.ms",
        "config:orders:retention.bytes",
    ]

    one = json.loads(wrote(conf, "topic", "alter", "orders", *kept[:2], "-o", "json"))
    assert one["headers"]["TARGET"] == "config:orders:retention.ms=2592000000"


def test_the_result_is_waited_for_and_printed(
    job: InMemoryJob, conf: str, landing: list[Record]
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
    assert {record.headers_as_text()["ACTOR"] for record in landing} == {getpass.getuser()}
    assert [record.partition for record in landing] == [0] * 6


def test_a_result_that_does_not_come_is_one_sentence(
    job: InMemoryJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.half("tx-1")
    job.run()
    monkeypatch.setattr("pipelines.operate.records.write", lambda *_: 77)
    words = ("--reason", "why", "--conf", conf)
    late = "Error: no result within 0.1 s: the record is written; is the job running?\n"
    for command in (("tx", "commit", "0-0"), ("topic", "create", "a", "--queues", "1")):
        output = said(*command, *words, "--wait-s", "0.1", code=1)
        assert output.endswith(late)
        assert "offset 77" in output
        unwaited = said(*command, *words)  # exit code 0
        assert "the job says" not in unwaited
        assert unwaited.splitlines()[-1] == (
            "that is expected, and not done yet: --wait-s 30 waits for the job's result"
        )


def test_each_command_takes_the_same_forms_of_a_target(job: InMemoryJob, conf: str) -> None:
    job.half("given-up")
    job.half("closed", real_topic="closed")
    job.end(COMMIT, 1)
    job.run(7_000)
    job.half("pending")
    job.half("delayed", deliver_at=START_AT + 3_600_000)
    job.end(COMMIT, 3)
    for seq in range(2):
        job.half("set", queue=1, tran_size=2, tran_seq=seq)
    for queue in range(2):
        job.half("twice", queue=queue)
    job.run()

    def about(*words: str) -> str:
        told = dry(conf, *words)
        return str(told["headers"].get("TARGET") or f"{told['partition']}:{told['body']}")

    for text in ("pending", "0-2", "half:0-2", "id:pending"):
        assert about("tx", "commit", text) == about("tx", "rollback", text) == "0:2,"
        assert about("check", "resend", text) == "half:0-2"
        assert "half 0-2" in said("tx", "explain", text, "--conf", conf)
    for text in ("given-up", "0-0", "half:0-0"):
        assert about("dead", "resume", text) == "half:0-0"
    for text in ("delayed", "0-3", "half:0-3"):
        assert about("schedule", "cancel", text) == "half:0-3"
    assert about("dead", "resume", "closed") == "undeliverable:0"
    assert about("tx", "commit", "set") == "1:0,"

    words = ("--reason", "why", "--conf", conf)
    assert said("tx", "commit", "twice", *words, code=1) == (
        "Error: transaction id twice stands for 2 targets of COMMIT: name one of half:0-4, "
        "half:1-2\n"
    )
    assert "nothing that RESUME can be about" in said("dead", "resume", "pending", *words, code=1)
    assert "has transaction id nobody" in said("tx", "commit", "nobody", *words, code=1)
    assert "'schedule:0-0' is no target of RESUME: a transaction id or <queue>-<offset> or" in said(
        "dead", "resume", "schedule:0-0", *words, code=2
    )


def test_a_user_without_a_name_must_say_who(
    job: InMemoryJob, conf: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> str:
        raise KeyError(4711)

    monkeypatch.setattr("getpass.getuser", nobody)
    output = said(
        "topic", "create", "a", "--queues", "1", "--reason", "why", "--conf", conf, code=2
    )
    assert "the login user is not known: name one with --actor" in output
