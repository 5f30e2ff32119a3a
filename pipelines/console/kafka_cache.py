"""Kafka asked beside the pages: a page waits a second for it, not as long as Kafka is away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError  # Python 3.10's is its own
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, TypeVar

from pipelines.errors import JobError, KafkaAwayError, NotAnsweredYetError

T = TypeVar("T")

_WAIT_S: Final = 1.0
_FRESH_S: Final = 5.0  # what was answered longer ago is asked anew
_TROUBLE_S: Final = 60.0  # so long the next pages do not wait


@dataclass
class _PendingQuery:
    trouble: str = ""  # why the time before had no answer
    answer: Future[Any] = field(default_factory=Future)
    ended_at: float | None = None

    def is_older(self, seconds: float) -> bool:
        return self.ended_at is not None and monotonic() - self.ended_at >= seconds

    def run(self, question: Callable[[], Any]) -> None:
        try:
            found = question()
        except BaseException as error:
            self.ended_at = monotonic()
            self.answer.set_exception(error)
        else:
            self.ended_at = monotonic()
            self.answer.set_result(found)

    def next_trouble(self) -> str:
        """Returns why a question asked anew may have no answer."""
        error = self.answer.exception()
        return str(error) if isinstance(error, JobError) else ""


class QueryCache:
    """Questions to Kafka: each is asked once at a time, whoever waits for its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._questions: dict[Hashable, _PendingQuery] = {}

    def ask(self, name: Hashable, question: Callable[[], T]) -> T:
        """Returns the answer to a question.

        Input: `name`: two questions of one name are the same question.
        Errors: what the question raises; NotAnsweredYetError if there is no answer yet, which a
        page that is made within seconds takes up; KafkaAwayError if the time before had none.
        """
        with self._lock:
            # Groups come and go, and with them questions: what nobody asks for long is dropped.
            self._questions = {
                known: asked
                for known, asked in self._questions.items()
                if not asked.is_older(_TROUBLE_S)
            }
            asked = self._questions.get(name)
            if asked is None or asked.is_older(_FRESH_S):
                asked = _PendingQuery("" if asked is None else asked.next_trouble())
                self._questions[name] = asked
                threading.Thread(
                    target=asked.run, args=(question,), name="txlake-asks", daemon=True
                ).start()
        try:
            found: T = asked.answer.result(timeout=0 if asked.trouble else _WAIT_S)
        except FutureTimeoutError:
            if asked.answer.done():  # the question's own
                raise
            if asked.trouble:
                raise KafkaAwayError(asked.trouble) from None
            raise NotAnsweredYetError(
                f"Kafka has not answered within {_WAIT_S:.0f} s; look again"
            ) from None
        return found
