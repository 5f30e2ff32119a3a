"""Kafka's replies beside the pages: a page waits a second for one, not as long as Kafka is away."""

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

_PAGE_WAIT_S: Final = 1.0
_FORM_WAIT_S: Final = 5.0  # somebody has pressed a button for it; a page renews itself
_FRESH_S: Final = 5.0  # older replies are queried anew
_NO_REPLY_S: Final = 60.0  # after a query without a reply, pages do not wait for this long


@dataclass
class _PendingQuery:
    error_text: str = ""  # why the query before had no reply
    answer: Future[Any] = field(default_factory=Future)
    ended_at: float | None = None

    def is_older(self, seconds: float) -> bool:
        return self.ended_at is not None and monotonic() - self.ended_at >= seconds

    def run(self, query: Callable[[], Any]) -> None:
        try:
            reply = query()
        except BaseException as error:  # raised to the pages that wait for the reply
            self.ended_at = monotonic()
            self.answer.set_exception(error)
        else:
            self.ended_at = monotonic()
            self.answer.set_result(reply)

    def next_error_text(self) -> str:
        """Returns why the next query may have no reply."""
        error = self.answer.exception()
        return str(error) if isinstance(error, JobError) else ""


class QueryCache:
    """Queries to Kafka: each runs once at a time, however many pages wait for its reply.

    Units: `page_wait_s` and `form_wait_s`, how long a page and a form wait for a reply, s.
    """

    def __init__(
        self, page_wait_s: float = _PAGE_WAIT_S, form_wait_s: float = _FORM_WAIT_S
    ) -> None:
        self._page_wait_s = page_wait_s
        self._form_wait_s = form_wait_s
        self._lock = threading.Lock()
        self._queries: dict[Hashable, _PendingQuery] = {}

    def ask(self, name: Hashable, query: Callable[[], T], *, is_form: bool = False) -> T:
        """Returns the reply to a query.

        Input: `name`: two queries of one name are the same query; `is_form`: somebody has sent a
        form and waits for this reply.
        Errors: those of the query; NotAnsweredYetError if there is no reply yet: a page that is
        made within seconds gets it; KafkaAwayError if the query before had no reply.
        """
        pending = self._pending_query(name, query)
        wait_s = self._form_wait_s if is_form else self._page_wait_s

        try:
            reply: T = pending.answer.result(timeout=0 if pending.error_text else wait_s)
        except FutureTimeoutError:
            if pending.answer.done():  # the query's own
                raise
            if pending.error_text:
                raise KafkaAwayError(pending.error_text) from None
            raise NotAnsweredYetError(
                f"Kafka has not answered within {wait_s:.0f} s; look again"
            ) from None
        return reply

    def forget(self, name: Hashable) -> None:
        """Drops a query's reply: something was written, and the next page must show it."""
        with self._lock:
            self._queries.pop(name, None)

    def _pending_query(self, name: Hashable, query: Callable[[], Any]) -> _PendingQuery:
        """Returns the running or fresh query of a name; starts it if there is none."""
        with self._lock:
            # Groups come and go, and their queries with them: those without a page are dropped.
            self._queries = {
                known: pending
                for known, pending in self._queries.items()
                if not pending.is_older(_NO_REPLY_S)
            }
            pending = self._queries.get(name)

            if pending is None or pending.is_older(_FRESH_S):
                pending = _PendingQuery("" if pending is None else pending.next_error_text())
                self._queries[name] = pending
                threading.Thread(
                    target=pending.run, args=(query,), name="txlake-asks", daemon=True
                ).start()

            return pending
