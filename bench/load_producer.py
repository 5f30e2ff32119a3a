"""A producer of the benchmark, by the SDK: transactions at a rate, or as many as are consumed.

Without --rate it sends as fast as it can while at most --in-flight committed transactions are not
consumed yet: what then flows is what the whole can sustain, and its backlog cannot grow. It stops
at SIGTERM, and answers checks until then: those that gave no end have committed.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.bodies import JSON, KINDS, bodies
from bench.collector import look_rarely
from bench.counter_file import CounterFile
from bench.sample_data import GROUP, TOPIC, Mix, user_properties
from pipelines.settings import Settings, load
from tests.support.producers import options_of
from txlake import (
    CheckedMessage,
    HalfMessage,
    LocalTransactionState,
    Message,
    ProducerOptions,
    TransactionListener,
    TransactionProducer,
)

LATE = "late"  # KEYS of messages whose end comes only by a check; in Kafka, the record's key
_TICK_S = 0.01


class Listener(TransactionListener):
    """End each transaction as it was told to."""

    def execute_local_transaction(self, _message: HalfMessage, arg: Any) -> LocalTransactionState:
        """Return what was handed over."""
        return arg  # type: ignore[no-any-return]

    def check_local_transaction(self, _message: CheckedMessage) -> LocalTransactionState:
        """Answers that the transaction committed."""
        return LocalTransactionState.COMMIT_MESSAGE


class Sender:
    """Send transactions one by one, and count them."""

    def __init__(self, producer: TransactionProducer, mix: Mix) -> None:
        self._producer, self._mix = producer, mix
        self._random = random.Random(1)
        self._bodies = bodies(mix.body, mix.body_bytes)
        self.sent = 0
        self.committed = 0  # without those that a check ends

    def send(self) -> None:
        """Send one."""
        drawn = self._random.random()
        mix = self._mix
        state = LocalTransactionState.COMMIT_MESSAGE
        keys = None

        if drawn < mix.rolled_back:
            state = LocalTransactionState.ROLLBACK_MESSAGE
        elif drawn < mix.rolled_back + mix.unanswered:
            state = LocalTransactionState.UNKNOWN
            keys = LATE
        else:
            self.committed += 1

        message = Message(
            TOPIC, next(self._bodies), keys=keys, properties=user_properties(self.sent)
        )

        self.sent += 1
        self._producer.send_pipelined(message, state)


def send_at_rate(
    sender: Sender, rate: float, sent: CounterFile, has_ended: Callable[[], bool]
) -> None:
    """Send so many a second, however long each takes."""
    began = time.monotonic()
    while not has_ended():
        for _ in range(int((time.monotonic() - began) * rate) - sender.sent):
            sender.send()
        sent.write(sender.sent, sender.committed)
        time.sleep(_TICK_S)


def send_what_is_consumed(
    sender: Sender,
    in_flight: int,
    sent: CounterFile,
    consumed: CounterFile,
    has_ended: Callable[[], bool],
) -> None:
    """Send while not more than so many wait to be consumed."""
    while not has_ended():
        room = in_flight - (sender.committed - consumed.read()[0])
        for _ in range(min(room, 500)):
            sender.send()
        sent.write(sender.sent, sender.committed)
        if room <= 0:
            time.sleep(_TICK_S)


def options_for(settings: Settings, linger_ms: int | None = None) -> ProducerOptions:
    """Return what the SDK's producers need to know of a job.

    Input: `linger_ms`: how long to collect records, so that Kafka gets fewer and larger batches;
    without it as the SDK does, which is for latency.
    """
    linger = (
        {} if linger_ms is None else {"half_linger_ms": linger_ms, "operation_linger_ms": linger_ms}
    )
    return options_of(
        settings,
        **linger,
        message_bytes_max=settings.transaction.message_bytes_max,
    )


def main() -> None:
    """Send until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conf", required=True, help="the job's settings")
    parser.add_argument("--sent", type=Path, required=True, help="file for the counts")
    parser.add_argument("--consumed", type=Path, required=True, help="file of the consumer's count")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--in-flight", type=int, default=150_000)
    parser.add_argument("--unanswered", type=float, default=0.01)
    parser.add_argument("--body", choices=KINDS, default=JSON)
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--linger-ms", type=int, help="collect records for so long")
    options = parser.parse_args()

    ended = threading.Event()
    faulthandler.register(signal.SIGUSR1)
    look_rarely()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())

    settings = load(options.conf)
    servers = settings.kafka.bootstrap_servers
    mix = Mix(options.body_bytes, options.body, unanswered=options.unanswered)
    sent, consumed = CounterFile(options.sent, 2), CounterFile(options.consumed, 1)

    with TransactionProducer(
        servers, GROUP, Listener(), options=options_for(settings, options.linger_ms)
    ) as transactions:
        sender = Sender(transactions, mix)
        if options.rate:
            send_at_rate(sender, options.rate, sent, ended.is_set)
        else:
            send_what_is_consumed(sender, options.in_flight, sent, consumed, ended.is_set)


if __name__ == "__main__":
    main()
