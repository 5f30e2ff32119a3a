"""Checks are answered by any live producer of the group, from a bounded pool."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import ConfigResource

from pipelines.cli.main import main
from pipelines.health.kafka import members_of
from pipelines.kafka_client.record_reader import read_kafka
from pipelines.local_broker.broker import Broker
from pipelines.settings import KafkaSettings
from tests.support.raw_record import write_raw_record
from tests.support.transaction_topics import Record, TransactionTopics
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    TransactionListener,
    TransactionProducer,
)
from txlake import protocol as p

COMMIT = LocalTransactionState.COMMIT_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
GROUP = "shop"
pytestmark = pytest.mark.usefixtures("patient_producers")


class Listener(TransactionListener):
    """Answer checks with what is given; remember what was asked."""

    def __init__(self, answer: Any = COMMIT) -> None:
        self.answer = answer
        self.asked: list[CheckedMessage] = []

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        state: LocalTransactionState = arg(message)
        return state

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        self.asked.append(message)
        answer: LocalTransactionState = (
            self.answer(message) if callable(self.answer) else self.answer
        )
        return answer


@pytest.fixture
def topics(broker: Broker, unique: Callable[[str], str]) -> TransactionTopics:
    return TransactionTopics(broker.bootstrap_servers, unique("checks"), partitions=2)


def make(topics: TransactionTopics, listener: Listener, **options: Any) -> TransactionProducer:
    return TransactionProducer(
        topics.bootstrap_servers, GROUP, listener, options=topics.options(**options)
    )


def answers(topics: TransactionTopics, count: int) -> list[Record]:
    return topics.wait_for(topics.op, lambda records: len(records) >= count)


def test_a_check_sent_before_any_producer_lived_is_answered(topics: TransactionTopics) -> None:
    topics.make(topics.check_prefix + GROUP, 1)
    topics.ask(GROUP, (1, "17"), "t17", KEYS="k", colour="red")
    listener = Listener()
    with make(topics, listener):
        (op,) = answers(topics, 1)
    assert op.partition == 1
    assert op.half_offsets == [17]
    assert op.names == ["TAGS", "PGROUP", "TRAN_TYPE", "UNIQ_KEY", "FROM_CHECK", "CHECK_ID", "TXV"]
    assert op.headers == {
        "TAGS": "d",
        "PGROUP": GROUP,
        "TRAN_TYPE": "8",
        "UNIQ_KEY": "t17",
        "FROM_CHECK": "true",
        "CHECK_ID": "1-17-0-1",
        "TXV": "1",
    }
    (asked,) = listener.asked
    assert (asked.transaction_id, asked.topic, asked.body) == ("t17", "orders", b"body")
    assert (asked.queue_id, asked.queue_offset, asked.check_times) == (1, 17, 1)
    assert (asked.keys, asked.properties) == ("k", {"colour": "red"})


def test_a_producer_makes_its_groups_check_topic(topics: TransactionTopics) -> None:
    with make(topics, Listener()):
        wait_until(lambda: has_topic(topics, topics.check_prefix + GROUP), "no check topic")
        topics.ask(GROUP, (0, "3"), "t3")
        assert answers(topics, 1)[0].half_offsets == [3]


def test_a_command_makes_the_check_topic_of_a_group_whose_client_does_not(
    topics: TransactionTopics, tmp_path: Path
) -> None:
    conf, group = tmp_path / "job.toml", f"{GROUP}.made"
    conf.write_text(
        f'[lake]\npath = "lake"\n[kafka]\nbootstrap_servers = "{topics.bootstrap_servers}"\n'
        f'check_topic_prefix = "{topics.check_prefix}"\n'
    )

    def made(name: str, *more: str) -> str:
        words = ["check", "topic", name, "--conf", str(conf), *more]
        done = CliRunner().invoke(main, words)
        return " ".join(done.output.split())

    name = topics.check_prefix + group
    assert made(group, "--partitions", "2") == f"made {name} with 2 partitions"
    assert made(group) == f"{name} is there: nothing was changed"
    assert f"Kafka takes no topic {topics.check_prefix}{GROUP}_made beside {name}" in made(
        f"{GROUP}_made"
    )

    described = topics._admin.describe_configs([ConfigResource("topic", name)])
    config = next(iter(described.values())).result(DEADLINE_S)
    for setting, value in p.check_topic_config(p.MESSAGE_BYTES_MAX).items():
        assert config[setting].value == value
    assert len(topics._admin.list_topics(timeout=DEADLINE_S).topics[name].partitions) == 2


def test_a_check_topic_that_is_deleted_is_made_again_and_read(
    topics: TransactionTopics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.check_prefix + GROUP
    with make(topics, Listener()):
        wait_until(lambda: has_topic(topics, topic), "no check topic")
        topics.ask(GROUP, (0, "3"), "t3")
        answers(topics, 1)
        topics._admin.delete_topics([topic])[topic].result(DEADLINE_S)
        said = f"{topic} was deleted: it is made again"
        wait_until(lambda: said in caplog.text, "the producer sees it", seen=lambda: caplog.text)
        wait_until(lambda: has_topic(topics, topic), "it was not made again")
        topics.ask(GROUP, (0, "4"), "t4")
        assert [record.half_offsets for record in answers(topics, 2)] == [[3], [4]]


def test_a_group_whose_check_topic_kafka_refuses_is_refused_and_both_are_named(
    topics: TransactionTopics,
) -> None:
    first, second = "shop.eu", "shop_eu"
    topics.make(topics.check_prefix + first, 1)
    with pytest.raises(ValueError, match=r"counts '\.' and '_' as one") as error:
        TransactionProducer(topics.bootstrap_servers, second, Listener(), options=topics.options())
    assert topics.check_prefix + first in str(error.value)
    assert topics.check_prefix + second in str(error.value)


def test_a_check_about_a_set_is_answered_for_all_its_halves(topics: TransactionTopics) -> None:
    listener = Listener()
    topics.make(topics.check_prefix + GROUP, 1)
    topics.ask(GROUP, (0, "17,18,25"), "t17", body=None, BODY_OMITTED="true")
    with make(topics, listener):
        (op,) = answers(topics, 1)
    assert op.half_offsets == [17, 18, 25]
    assert op.headers["UNIQ_KEY"] == "t17,t17,t17"
    assert listener.asked[0].queue_offsets == (17, 18, 25)
    assert listener.asked[0].body is None
    assert listener.asked[0].is_body_omitted


def raise_error(_message: CheckedMessage) -> LocalTransactionState:
    raise OSError("database gone")


@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (None, "not a LocalTransactionState: NoneType"),
        ("COMMIT", "not a LocalTransactionState: str"),
        (raise_error, "OSError: database gone"),
    ],
)
def test_a_check_without_an_answer_is_unknown(
    topics: TransactionTopics, answer: Any, remark: str
) -> None:
    topics.make(topics.check_prefix + GROUP, 1)
    topics.ask(GROUP, (0, "1"), "t1")
    with make(topics, Listener(answer)):
        (op,) = answers(topics, 1)
    assert (op.headers["TRAN_TYPE"], op.headers["REMARK"]) == ("0", remark)


def test_a_check_about_a_running_local_transaction_does_not_ask_the_listener(
    topics: TransactionTopics,
) -> None:
    listener = Listener()
    topics.make(topics.check_prefix + GROUP, 1)

    def check_meanwhile(half: HalfMessage) -> LocalTransactionState:
        topics.ask(GROUP, (half.queue_id, str(half.queue_offset)), half.transaction_id)
        (op,) = answers(topics, 1)
        assert (op.headers["TRAN_TYPE"], op.headers["FROM_CHECK"]) == ("0", "true")
        assert op.headers["REMARK"] == "the local transaction still runs"
        return COMMIT

    with make(topics, listener) as producer:
        result = producer.send_message_in_transaction(Message("orders", b""), check_meanwhile)
        assert result.remark == ""
        assert listener.asked == []
        topics.ask(GROUP, (result.queue_id, str(result.queue_offset)), result.transaction_id)
        answers(topics, 3)
    assert [message.transaction_id for message in listener.asked] == [result.transaction_id]


def test_records_that_are_no_checks_are_passed_over(topics: TransactionTopics) -> None:
    topics.make(topics.check_prefix + GROUP, 1)
    topics.ask(GROUP, (0, "not an offset"), "t1")
    topics.ask(GROUP, (0, "1"), "no id!")
    topics.ask(GROUP, (0, "1"), "t1", PGROUP="another-group")
    topics.ask(GROUP, (0, "2"), "t2")
    with make(topics, Listener()):
        (op,) = answers(topics, 1)
    assert op.half_offsets == [2]


def ask_in_group(topics: TransactionTopics, count: int) -> None:
    """Make the group's check topic, and ask about so many transactions."""
    topics.make(topics.check_prefix + GROUP, 1)
    for number in range(count):
        topics.ask(GROUP, (0, str(number)), f"t{number}")


def hanging_listener(go_on: threading.Event) -> Listener:
    """Give a listener that answers when the event is set."""

    def hang(_message: CheckedMessage) -> LocalTransactionState:
        go_on.wait(DEADLINE_S)
        return COMMIT

    return Listener(hang)


def test_a_hanging_listener_takes_a_bounded_number_and_does_not_hold_close(
    topics: TransactionTopics,
) -> None:
    go_on = threading.Event()
    ask_in_group(topics, 6)
    hanging = hanging_listener(go_on)
    producer = make(topics, hanging, check_threads=2, close_timeout_ms=1500)
    wait_until(lambda: len(hanging.asked) == 2, "checks taken")
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < DEADLINE_S / 2, "no longer than its close_timeout_ms"
    assert len(hanging.asked) == 2
    # None of the six was answered, so none was committed: another producer is asked all.
    second = Listener()
    with make(topics, second):
        wait_until(lambda: len(second.asked) == 6, "checks that the next producer was asked")
    go_on.set()


def test_a_producer_with_many_hanging_threads_leaves_its_group_in_time(
    topics: TransactionTopics,
) -> None:
    go_on = threading.Event()
    threads = 64
    ask_in_group(topics, threads)
    hanging = hanging_listener(go_on)
    producer = make(topics, hanging, check_threads=threads, close_timeout_ms=8_000)
    wait_until(lambda: len(hanging.asked) == threads, "checks taken")

    producer.close()
    second = Listener()
    with make(topics, second):  # its turn comes when the first has left, not after 64 times 4 s
        wait_until(
            lambda: len(second.asked) == threads, "checks of the next producer", deadline_s=120
        )
    go_on.set()


def test_one_hanging_transaction_takes_one_worker_however_often_it_is_asked_about(
    topics: TransactionTopics,
) -> None:
    go_on = threading.Event()

    def hang(message: CheckedMessage) -> LocalTransactionState:
        if message.transaction_id == "locked":
            go_on.wait(DEADLINE_S)
        return COMMIT

    topics.make(topics.check_prefix + GROUP, 1)
    listener = Listener(hang)
    with make(topics, listener, check_threads=2):
        for number in range(1, 6):
            topics.ask(
                GROUP, (0, "1"), "locked", CHECK_TIMES=str(number), CHECK_ID=f"0-1-0-{number}"
            )
        topics.ask(GROUP, (0, "2"), "free")
        (op,) = answers(topics, 1)
        assert op.half_offsets == [2]
        assert [message.transaction_id for message in listener.asked] == ["locked", "free"]
        go_on.set()
        ops = answers(topics, 2)
    assert [op.half_offsets for op in ops] == [[2], [1]]

    # The one answer is an answer to all five: nobody is asked again.
    second = Listener()
    topics.ask(GROUP, (0, "3"), "later")
    with make(topics, second):
        answers(topics, 3)
    assert [message.transaction_id for message in second.asked] == ["later"]


def test_a_producer_whose_workers_all_hang_keeps_its_partitions_and_reads_on_later(
    topics: TransactionTopics,
) -> None:
    go_on = threading.Event()

    def hang(message: CheckedMessage) -> LocalTransactionState:
        if message.transaction_id.startswith("locked"):
            go_on.wait(DEADLINE_S)
        return COMMIT

    topics.make(topics.check_prefix + GROUP, 1)
    listener = Listener(hang)
    client = {"max.poll.interval.ms": 6_000, "session.timeout.ms": 6_000}
    producer = TransactionProducer(
        topics.bootstrap_servers,
        GROUP,
        listener,
        client=client,
        options=topics.options(check_threads=1, close_timeout_ms=1_500),
    )
    with producer:
        topics.ask(GROUP, (0, "1"), "locked")
        wait_until(lambda: listener.asked, "the check that hangs")
        topics.ask(GROUP, (0, "2"), "next")

        # Longer than a consumer may be silent: Kafka would give its partitions to another.
        full_at = time.monotonic()
        wait_until(lambda: time.monotonic() - full_at > 8, "8 s")
        # On a busy machine Kafka may have missed it meanwhile, and the check came once more.
        wait_until(lambda: members(topics) == 1, "it is a member")

        go_on.set()
        ended: list[list[int]] = []

        def both_are_ended() -> bool:
            ended[:] = [op.half_offsets for op in topics.records(topics.op)]
            return [2] in ended

        wait_until(both_are_ended, "both answers", seen=lambda: ended)
        assert ended[0] == [1] and ended[-1] == [2]
        assert all(offsets in ([1], [2]) for offsets in ended)


def members(topics: TransactionTopics) -> int:
    """Returns how many producers of the group listen, as `txlake groups` says it."""
    kafka = KafkaSettings(topics.bootstrap_servers, check_topic_prefix=topics.check_prefix)
    return members_of(kafka, [GROUP])[GROUP]


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), KeyboardInterrupt()])
def test_whatever_a_listener_raises_its_worker_goes_on(
    topics: TransactionTopics, error: BaseException
) -> None:
    def fail(message: CheckedMessage) -> LocalTransactionState:
        if message.transaction_id.startswith("bad"):
            raise error
        return COMMIT

    topics.make(topics.check_prefix + GROUP, 1)
    for number in range(3):
        topics.ask(GROUP, (0, str(number)), f"bad-{number}")
    topics.ask(GROUP, (0, "7"), "good")
    with make(topics, Listener(fail), check_threads=1):
        ops = answers(topics, 4)
    assert [op.headers["TRAN_TYPE"] for op in ops] == ["0", "0", "0", "8"]
    assert type(error).__name__ in ops[0].headers["REMARK"]


def test_a_record_with_a_name_that_is_no_text_is_passed_over(
    topics: TransactionTopics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics.check_prefix + GROUP
    topics.make(topic, 1)
    listener = Listener()
    with make(topics, listener):
        for _ in range(20):
            write_raw_record(topics.bootstrap_servers, topic, 0, b"x", [(b"caf\xe9", b"1")])
        topics.ask(GROUP, (0, "1"), "t1")
        answers(topics, 1)
    # The next process is not held up by them either.
    topics.ask(GROUP, (0, "2"), "t2")
    with make(topics, listener):
        answers(topics, 2)
    assert [message.transaction_id for message in listener.asked] == ["t1", "t2"]
    lines = [r.message for r in caplog.records if "is not UTF-8" in r.message]
    assert len(lines) == 5  # of 20 records: at 1, 2, 4, 8, 16
    assert f"{topic}: partition 0 offset 0 is skipped" in lines[0]
    assert "16 such records so far" in lines[-1]


def test_a_header_with_a_name_that_is_no_text_has_a_name_that_says_so(
    topics: TransactionTopics,
) -> None:
    topic = topics.check_prefix + GROUP
    topics.make(topic, 1)
    headers = [(b"a", b"1"), (b"caf\xe9", b"2"), (b"b", b""), (b"\xff", b"4"), (b"c", b"\xff")]
    for _ in range(10):
        write_raw_record(topics.bootstrap_servers, topic, 0, b"x", [(b"a", b"1")])
        write_raw_record(topics.bootstrap_servers, topic, 0, b"x", headers)

    kafka = KafkaSettings(bootstrap_servers=topics.bootstrap_servers)
    batches = read_kafka(kafka, {(topic, 0): range(0, 20)})
    rows = [row for batch in batches for row in batch.to_pylist()]
    expected = [
        {"key": "a", "value": b"1"},
        {"key": "\ufffd", "value": b"2"},
        {"key": "b", "value": b""},
        {"key": "\ufffd", "value": b"4"},
        {"key": "c", "value": b"\xff"},
    ]
    assert [row["headers"] for row in rows] == [expected[:1], expected] * 10


def test_another_live_producer_of_the_group_answers(topics: TransactionTopics) -> None:
    topics.make(topics.check_prefix + GROUP, 1)
    one, two = Listener(), Listener()
    first = make(topics, one)
    with make(topics, two):
        topics.ask(GROUP, (0, "1"), "t1")
        answers(topics, 1)
        first.close()
        topics.ask(GROUP, (0, "2"), "t2")
        ops = answers(topics, 2)
    assert [op.half_offsets for op in ops] == [[1], [2]]
    assert [message.transaction_id for message in two.asked][-1] == "t2"


def test_an_answered_check_is_not_asked_again(topics: TransactionTopics) -> None:
    topics.make(topics.check_prefix + GROUP, 1)
    topics.ask(GROUP, (0, "1"), "t1")
    with make(topics, Listener()):
        answers(topics, 1)
    topics.ask(GROUP, (0, "2"), "t2")
    second = Listener()
    with make(topics, second):
        answers(topics, 2)
    assert [message.transaction_id for message in second.asked] == ["t2"]


def has_topic(topics: TransactionTopics, name: str) -> bool:
    return name in topics._admin.list_topics(timeout=DEADLINE_S).topics
