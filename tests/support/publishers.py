"""Lakes that are published, publishers that are killed, and what a consumer then reads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin._listoffsets import OffsetSpec

from pipelines.publish.errors import FencedError
from pipelines.publish.process import PublisherProcess
from pipelines.publish.publisher import Turn
from pipelines.publish.transaction_limit import TransactionLimit
from pipelines.publish.transactions import Transactions
from pipelines.settings import Settings, parse
from storage.lake.lake import Lake
from storage.rows import milliseconds
from tests.support.in_memory_job import InMemoryJob
from tests.support.kafka_admin import admin_client
from tests.support.processes import is_suspended
from tests.support.topic_names import topics_named
from tests.support.wait import DEADLINE_S, wait_until
from txlake import protocol as p

Row = dict[str, Any]
BEFORE, WITHIN, AFTER = "before the commit", "within the commit", "after the commit"


class PublishedLake:
    """A lake without a job, and the settings of publishers of it.

    Input: `prefix` of the names of the destination and of the job's topics, so that tests share
    a broker.
    """

    def __init__(self, path: Path, servers: str, prefix: str, **publisher: Any) -> None:
        self.path, self.servers, self.prefix = path, servers, prefix
        self.job = InMemoryJob(path, default_queue_count=4)
        self.job.at = time.time_ns() // 1_000_000  # Kafka deletes what is older than a week
        self.publisher = {
            "destination": f"{prefix}-{{topic}}",
            "progress_topic": f"{prefix}-progress",
            **publisher,
        }

    def settings(self, **publishers: dict[str, Any]) -> Settings:
        """Returns the settings with some publishers; without any, with `main` alone."""
        return parse(self.values(**publishers), "test")

    def values(self, **publishers: dict[str, Any]) -> dict[str, Any]:
        return {
            "lake": {"path": str(self.path)},
            "kafka": {"bootstrap_servers": self.servers, **topics_named(self.prefix)},
            "publish": {
                name: {**self.publisher, **values}
                for name, values in (publishers or {"main": {}}).items()
            },
        }

    def send(self, *messages: Row, ended: bool = True, **run: Any) -> None:
        """Commits each message in a transaction of its own, all in one epoch."""
        offsets = {0: [], 1: []}  # type: ignore[var-annotated]
        for number, message in enumerate(messages):
            queue = message.pop("half_queue", number % 2)
            name = f"tx-{self.job.epoch}-{number}"
            offsets[queue].append(
                self.job.half(**{"transaction_id": name, "queue": queue, **message})
            )
        for queue, these in offsets.items():
            if these and ended:
                self.job.end(p.COMMIT, *these, queue=queue)
        self.job.run(**run)

    def send_set(self, *messages: Row) -> None:
        """Commits messages of one transaction."""
        name = f"set-{self.job.epoch}"
        offsets = [
            self.job.half(
                **{"transaction_id": name, "tran_size": len(messages), "tran_seq": seq, **message}
            )
            for seq, message in enumerate(messages)
        ]
        self.job.end(p.COMMIT, *offsets)
        self.job.run()

    def rows(self, topic: str = "orders") -> dict[int, list[Row]]:
        """Returns the rows of a topic's table by queue, in order."""
        lake = Lake(str(self.path))
        ids = {row["topic"]: row["table_id"] for row in lake.read("catalog").to_pylist()}
        found: dict[int, list[Row]] = {}
        for row in lake.read(f"topics/{ids[topic]}").sort_by("queue_offset").to_pylist():
            found.setdefault(row["queue_id"], []).append(row)
        return found

    def stored_at(self) -> dict[tuple[int, int], int]:
        """Returns when each half was stored, by its place."""
        return {
            (row["queue_id"], row["queue_offset"]): milliseconds(row["stored_at"])
            for row in Lake(str(self.path)).read("half").to_pylist()
        }

    def destination(self, topic: str = "orders") -> str:
        return f"{self.prefix}-{topic}"

    def consume(self, topic: str = "orders", isolation: str = "read_committed") -> list[Any]:
        return consumed(self.servers, self.destination(topic), isolation)

    def require_published(self, topic: str = "orders") -> None:
        """Checks that the topic's Kafka topic is its table: each message once, in queue order."""
        table = {
            queue: [(row["queue_offset"], row["body"], row["keys"]) for row in rows]
            for queue, rows in self.rows(topic).items()
        }
        read: dict[int, list[Any]] = {}
        for message in self.consume(topic):
            key = message.key()
            read.setdefault(message.partition(), []).append(
                (offset_of(message), message.value(), None if key is None else key.decode())
            )
        assert read == table


def headers_of(message: Any) -> dict[str, bytes]:
    """Returns a record's headers; of a name the first one."""
    return dict(reversed(message.headers() or []))


def offset_of(message: Any) -> int:
    return int(headers_of(message)[p.QUEUE_OFFSET])


def consumed(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Returns all records of a Kafka topic; `read_committed` waits for open transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reads-all",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )

    try:
        partitions = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        if isolation == "read_committed":
            wait_for_markers(servers, topic, partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])

        open_partitions = set(partitions)
        read = []

        while open_partitions:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, f"{topic}: nothing came of {open_partitions}"
            error = message.error()
            if error is None:
                read.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise AssertionError(error.str())

        return read
    finally:
        consumer.close()


def wait_for_markers(servers: str, topic: str, partitions: Iterable[int]) -> None:
    """Waits until no transaction is open: Kafka says that one is committed, and marks it then."""
    admin = admin_client(servers)
    places = [TopicPartition(topic, number) for number in partitions]
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]

    def ends(level: IsolationLevel) -> list[int]:
        futures = admin.list_offsets(dict.fromkeys(places, latest), isolation_level=level)
        return [futures[place].result().offset for place in places]

    def are_marked() -> bool:
        with contextlib.suppress(KafkaException):  # a topic that was just made has no leader yet
            return ends(IsolationLevel.READ_UNCOMMITTED) == ends(IsolationLevel.READ_COMMITTED)
        return False

    wait_until(are_marked, f"the markers of all transactions in {topic}")


def new_turn(settings: Settings, name: str = "main") -> Turn:
    """Returns a turn of an elected publisher that nothing stops."""
    publisher = settings.publish[name]
    return Turn(settings, publisher, threading.Event(), lambda: True, TransactionLimit(publisher))


def publish_all(settings: Settings, name: str = "main") -> int:
    """Publishes all that is committed, as an elected publisher does. Output: how many messages."""
    turn = new_turn(settings, name)
    try:
        turn.begin()
        while turn.publish_committed():
            pass
        return turn.published
    finally:
        turn.close()


class PublisherThread:
    """A publisher's process as a thread of this one, from `with` to its end.

    What ends it before that is raised by the next wait, and by the end.
    """

    def __init__(self, settings: Settings, name: str = "main") -> None:
        self._process = PublisherProcess(settings, settings.publish[name])
        self._thread = threading.Thread(target=self._run)
        self._error: BaseException | None = None

    def __enter__(self) -> PublisherThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._process.run()
        except BaseException as error:
            self._error = error

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def wait_until(self, is_met: Callable[[], Any], what: str, **options: Any) -> Any:
        """Waits as `wait_until` does."""

        def is_met_meanwhile() -> Any:
            self._require_no_error()
            return is_met()

        return wait_until(is_met_meanwhile, what, **options)

    def stop(self) -> None:
        """Ends it, and waits for that. A second call changes nothing."""
        self._process.stop()
        self._thread.join()
        self._require_no_error()

    def _require_no_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


class KilledPublisher:
    """A publisher in a process of its own, which gets a signal around one of its transactions.

    Input: `at`: before, within or after the commit; `transaction`: which one, from 1.
    """

    def __init__(
        self, log: Path, values: dict[str, Any], at: str, transaction: int, number: int
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.support.publishers"])
        self._log = log
        self._process = context.Process(
            target=_publish, args=(str(log), values, at, transaction, number)
        )
        self._process.start()

    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def require_end(self, code: int) -> None:
        """Waits until it has ended, with an exit code; that of a signal is negative."""
        self._process.join(DEADLINE_S)
        assert self._process.exitcode == code, (self._process.exitcode, self.said())

    def is_suspended(self) -> bool:
        assert self._process.is_alive() and self._process.pid is not None, self.said()
        return is_suspended(self._process.pid)

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


@contextlib.contextmanager
def killed_publisher(*arguments: Any) -> Iterator[KilledPublisher]:
    """Yields a publisher; kills it at the end."""
    process = KilledPublisher(*arguments)
    try:
        yield process
    finally:
        process.end()


def _publish(log: str, values: dict[str, Any], at: str, transaction: int, number: int) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    commit = Transactions.commit
    left = [transaction]

    def committed(self: Transactions) -> None:
        left[0] -= 1
        if left[0] != 0:
            commit(self)
            return
        _around(at, number, lambda: commit(self), self)

    Transactions.commit = committed  # type: ignore[method-assign]
    while True:
        left[0] = transaction
        try:
            publish_all(parse(values, "test"))
            return
        except FencedError:  # on a slow machine a transaction before can have taken too long
            if left[0] <= 0:
                raise


def _around(at: str, number: int, commit: Callable[[], None], of: Transactions) -> None:
    def send() -> None:
        os.kill(os.getpid(), number)

    if at == BEFORE:
        of._producer.flush()  # all records stand in Kafka, uncommitted
        send()
    elif at == WITHIN:
        threading.Timer(0.003, send).start()
    commit()
    if at == AFTER:
        send()
