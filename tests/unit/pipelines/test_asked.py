"""Questions to Kafka beside the console's pages: nobody waits as long as Kafka is away."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipelines.console import kafka_cache as asking
from pipelines.console.kafka_cache import QueryCache
from pipelines.errors import KafkaAwayError, StartError
from tests.support.wait import DEADLINE_S, wait_until


class Broker:
    """A Kafka that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> str:
        self.asked += 1
        number = self.asked
        assert self.may_answer.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        return f"answer {number}"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what sets the clock by which answers grow old."""
    now = [0.0]
    monkeypatch.setattr(asking, "monotonic", lambda: now[0])

    def pass_s(seconds: float) -> None:
        now[0] += seconds

    return pass_s


def test_an_answer_is_shared_until_it_is_five_seconds_old(clock: Callable[[float], None]) -> None:
    questions, broker = QueryCache(page_wait_s=DEADLINE_S), Broker()
    broker.may_answer.set()
    assert questions.ask("lag", broker) == "answer 1"
    clock(4.9)
    assert questions.ask("lag", broker) == "answer 1"
    assert questions.ask("members", broker) == "answer 2"
    clock(0.2)
    assert questions.ask("lag", broker) == "answer 3"


@pytest.mark.usefixtures("clock")
def test_a_page_does_not_wait_for_what_is_still_asked_and_a_later_one_takes_it() -> None:
    questions, broker = QueryCache(page_wait_s=0.01), Broker()
    for _ in range(2):
        with pytest.raises(KafkaAwayError, match="has not answered within"):
            questions.ask("lag", broker)
    broker.may_answer.set()

    def is_answered() -> bool:
        try:
            return questions.ask("lag", broker) == "answer 1"
        except KafkaAwayError:
            return False

    wait_until(is_answered, "the answer")
    assert broker.asked == 1


def test_while_kafka_is_away_a_page_says_why_at_once_and_asks_again(
    clock: Callable[[float], None],
) -> None:
    questions, broker = QueryCache(page_wait_s=DEADLINE_S), Broker()
    broker.may_answer.set()
    broker.error = KafkaAwayError("Kafka at k:1 does not answer")
    with pytest.raises(KafkaAwayError, match="at k:1"):
        questions.ask("lag", broker)
    broker.may_answer.clear()
    clock(6)
    for _ in range(2):  # it is asked again, nobody waits
        with pytest.raises(KafkaAwayError, match="at k:1"):
            questions.ask("lag", broker)
    wait_until(lambda: broker.asked == 2, "the next question", seen=lambda: broker.asked)
    broker.error = None
    broker.may_answer.set()
    asked = questions._queries["lag"]
    assert asked.answer.result(DEADLINE_S) == "answer 2"
    assert questions.ask("lag", broker) == "answer 2"  # it is there
    assert broker.asked == 2


def test_a_trouble_of_long_ago_is_no_reason_not_to_wait(clock: Callable[[float], None]) -> None:
    questions, broker = QueryCache(page_wait_s=DEADLINE_S), Broker()
    broker.may_answer.set()
    broker.error = StartError("no right to look at group g")
    with pytest.raises(StartError, match="no right"):
        questions.ask("lag", broker)
    clock(61)
    broker.error = None
    assert questions.ask("lag", broker) == "answer 2"


def test_questions_that_nobody_asks_any_more_are_forgotten(clock: Callable[[float], None]) -> None:
    questions, broker = QueryCache(page_wait_s=DEADLINE_S), Broker()
    broker.may_answer.set()
    for number in range(100):
        questions.ask(("members", number), broker)
        clock(10)
    assert len(questions._queries) <= 7
