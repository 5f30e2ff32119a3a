"""A producer of the chaos run, by the SDK: transactions of all kinds, until it is killed.

Some end well, some are rolled back, some never answer; some raise after their local commit, some
take longer than their immunity; in some the process kills itself before or after the local commit.
Its database is the journal, shared by all producers of the group: any of them answers a check.
With the file `stop-sending` beside the journal it only answers checks.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from bench.chaos.journal import COMMIT, ROLLBACK, SILENT, Journal, Sent
from bench.chaos.names import GROUP, STOP_FILE, TOPIC_QUEUES, TOPICS
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    ProducerOptions,
    SendError,
    TransactionListener,
    TransactionProducer,
)

ANSWERING = "answering checks"
# A dead producer's checks go to another one after this; Kafka's brokers allow no less by default.
SESSION_TIMEOUT_MS = 6_000
# Kinds of local transactions, and of how many thousands each is.
KINDS = {
    "commit": 780,
    "rollback": 100,
    "unknown": 40,
    "raises": 20,
    "silent": 10,
    "slow": 6,
    "dies before": 2,
    "dies after": 4,
    "set": 38,
}
_SLOW_S = 1.6  # longer than the immunity: it is asked about while it runs


class ChaosListener(TransactionListener):
    """A listener that runs a local transaction of a kind, and answers for it by its guard row."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Does what the kind says. Input: arg: (kind, messages)."""
        kind, sent = arg
        if kind == "dies before":
            os.kill(os.getpid(), signal.SIGKILL)

        if kind in ("rollback", "silent"):
            end = SILENT if kind == "silent" else ROLLBACK
            return _state(self._journal.end_of(message.transaction_id, end, kind))

        if kind == "slow":
            time.sleep(_SLOW_S)

        try:
            self._journal.commit(message.transaction_id, sent, kind)
        except sqlite3.IntegrityError:  # a check was quicker
            return _state(self._journal.end_of(message.transaction_id, ROLLBACK, "refused"))

        if kind == "dies after":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "raises":
            raise RuntimeError("after the local commit")
        if kind == "unknown":
            return LocalTransactionState.UNKNOWN

        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message: CheckedMessage) -> LocalTransactionState:
        """Answers what holds for ever; without a row: writes the guard first."""
        return _state(self._journal.end_of(message.transaction_id, ROLLBACK, "guard"))


def _state(end: str) -> LocalTransactionState:
    return {
        COMMIT: LocalTransactionState.COMMIT_MESSAGE,
        ROLLBACK: LocalTransactionState.ROLLBACK_MESSAGE,
        SILENT: LocalTransactionState.UNKNOWN,
    }[end]


class Sender:
    """A sender of transactions, in an order that the seed fixes."""

    def __init__(self, producer: TransactionProducer, name: str, seed: int) -> None:
        self._producer = producer
        self._name = name
        self._random = random.Random(f"{seed}/{name}")
        self._count = 0

    def send_one(self) -> None:
        """Sends one transaction, or begins it; a half that was not stored is of no account."""
        rng = self._random
        kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
        self._count += 1
        size = rng.randint(2, 4) if kind == "set" else 1

        made = [self._message(f"{self._name}-{self._count}-{seq}") for seq in range(size)]
        arg = (kind, [sent for _, sent in made])
        messages = [message for message, _ in made]
        is_pipelined = size == 1 and kind != "slow" and rng.random() < 0.5

        try:
            if is_pipelined:
                self._producer.send_pipelined(messages[0], arg, on_done=lambda result: None)
            else:
                self._producer.send_messages_in_transaction(messages, arg)
        except SendError as error:
            print(f"{self._name}: {error}", flush=True)
            time.sleep(0.5)

        time.sleep(rng.expovariate(1 / 0.03))

    def _message(self, key: str) -> tuple[Message, Sent]:
        rng = self._random
        body = key.encode() + rng.randbytes(rng.choice((0, 20, 200, 4_000)))
        queue_id = rng.randrange(TOPIC_QUEUES) if rng.random() < 0.3 else None
        sent = Sent(key, rng.choice(TOPICS), body, queue_id)
        delay_level = 1 if rng.random() < 0.05 else None

        message = Message(
            sent.topic,
            body,
            keys=key,
            queue_id=queue_id,
            delay_level=delay_level,
            properties={"who": self._name},
        )

        return message, sent


def main() -> None:
    """Sends until the stop file is there, then answers checks until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--name", required=True, help="different for each start")
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    stop_file = options.journal.with_name(STOP_FILE)

    producer = TransactionProducer(
        options.bootstrap_servers,
        GROUP,
        ChaosListener(Journal(options.journal)),
        options=ProducerOptions(
            send_timeout_ms=20_000,
            check_session_timeout_ms=SESSION_TIMEOUT_MS,
            close_timeout_ms=3_000,
        ),
    )

    with producer:
        sender = Sender(producer, options.name, options.seed)
        while not ended.is_set() and not stop_file.exists():
            sender.send_one()

        producer.flush()
        print(ANSWERING, flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
