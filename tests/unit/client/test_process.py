"""What a client's object does in a process that forked, and when nobody has it any more."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.in_memory_job import InMemoryJob
from tests.support.wait import DEADLINE_S, wait_until
from txlake import (
    AsyncConsumer,
    ClosedError,
    Consumer,
    HalfMessage,
    LocalTransactionState,
    Message,
    Producer,
    ProducerOptions,
    TransactionListener,
    TransactionProducer,
)

NOWHERE = "127.0.0.1:1"


class Listener(TransactionListener):
    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


OPTIONS = ProducerOptions(send_timeout_ms=600_000, close_timeout_ms=100)


def in_child(run: Callable[[], None]) -> str:
    """Returns what a call raises in a process that forked; fails if it waits as long as a send."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            run()
            os.write(write, b"nothing")
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)

    os.close(write)
    # The deadline is less than half of the time-out of a send.
    wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0), "the child has ended")
    with os.fdopen(read) as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_producers_that_forked_say_so_at_once() -> None:
    message = Message("orders", b"x")
    with (
        TransactionProducer(NOWHERE, "shop", Listener(), options=OPTIONS) as transactional,
        Producer(NOWHERE, options=OPTIONS) as plain,
    ):
        calls: list[Callable[[], object]] = [
            lambda: transactional.send_message_in_transaction(message),
            lambda: transactional.send_pipelined(message),
            transactional.flush,
            lambda: plain.send(message),
        ]
        for call in calls:
            said = in_child(lambda call=call: call() and None)  # type: ignore[misc]
            assert said == (
                "ClosedError: the producer was made before a fork: make a producer in each process"
            )
        # Leaving a `with` block in a child waits for no thread that is not there.
        assert in_child(transactional.close) == in_child(plain.close) == "nothing"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_consumer_that_forked_says_so_and_keeps_its_queues(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("tx")
    job.end("COMMIT", 0)
    job.run()
    with Consumer(job.lake.path, "points", ["orders"]) as consumer:
        for call in (consumer.poll, consumer.commit, consumer.lag, consumer.committed):
            said = in_child(lambda call=call: call() and None)  # type: ignore[misc]
            assert said.startswith("ClosedError: the consumer was made before a fork"), call
        assert in_child(consumer.close) == "nothing"

        assert len(consumer.poll(5.0)) == 1
        consumer.commit()  # the queues are still its own

    def make() -> None:
        Consumer(job.lake.path, "others", ["orders"])

    said = in_child(make)
    assert said.startswith("ClosedError: Delta's library was used in this process before it forked")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_consumer_for_asyncio_that_forked_says_so_and_keeps_its_queues(tmp_path: Path) -> None:
    job = InMemoryJob(tmp_path / "lake")
    job.half("tx")
    job.end("COMMIT", 0)
    job.run()
    loop = asyncio.new_event_loop()
    consumer = AsyncConsumer(job.lake.path, "points", ["orders"])
    loop.run_until_complete(consumer.__aenter__())

    async def listen(_messages: object) -> None:
        return None

    for call in (consumer.poll, consumer.commit, consumer.lag, partial(consumer.run, listen)):
        said = in_child(lambda call=call: asyncio.run(call()) and None)  # type: ignore[misc]
        assert said.startswith("ClosedError: the consumer was made before a fork"), call
    assert in_child(lambda: asyncio.run(consumer.close())) == "nothing"
    assert in_child(consumer.stop) == "nothing"

    assert len(loop.run_until_complete(consumer.poll(DEADLINE_S))) == 1
    loop.run_until_complete(consumer.commit())  # the queues are still its own
    loop.run_until_complete(consumer.close())
    loop.close()


def threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("txlake-")}


@pytest.mark.parametrize("kind", ["transactional", "plain"])
def test_a_producer_that_nobody_has_any_more_ends_its_threads(kind: str) -> None:
    before = threads()  # of other tests: some of them are about to end
    if kind == "plain":
        producers: list[object] = [Producer(NOWHERE, options=OPTIONS)]
    else:
        producers = [TransactionProducer(NOWHERE, "shop", Listener(), options=OPTIONS)]
    assert threads() - before

    with pytest.warns(ResourceWarning, match="a producer was not closed"):
        producers.clear()

    wait_until(lambda: threads() <= before, "the end of its threads", seen=threads)


def test_a_process_ends_with_a_producer_that_was_not_closed() -> None:
    program = """
        from txlake import Producer, TransactionProducer
        producer, other = TransactionProducer("127.0.0.1:1", "shop"), Producer("127.0.0.1:1")
        print("end")
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout == "end\n"


def test_a_closed_producer_is_closed() -> None:
    producer = Producer(NOWHERE, options=OPTIONS)
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send(Message("orders", b"x"))
