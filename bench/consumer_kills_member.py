"""A consumer of the kill loop: its listener writes each call down, and refuses by a fixed rule."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from txlake import ConsumedMessage, Consumer, ConsumeStatus

TOPIC = "orders"
SESSION_TIMEOUT_MS = 1_500
RETRIES_MAX = 3
RETRY_DELAYS_MS = (200, 400, 800)


def refusals(offset: int) -> int:
    """Returns how often the message at an offset is refused; more than RETRIES_MAX: for ever."""
    if offset % 50 == 7:
        return RETRIES_MAX + 1
    if offset % 10 == 3:
        return 1 + offset // 10 % RETRIES_MAX
    return 0


def main() -> None:
    """Consumes until SIGTERM. A line of the journal is one call of the listener."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lake", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    options = parser.parse_args()
    journal = os.open(options.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def listen(messages: Sequence[ConsumedMessage]) -> ConsumeStatus:
        (message,) = messages
        times = message.reconsume_times
        is_refused = times < refusals(message.queue_offset)
        words = (message.queue_id, message.queue_offset, times, time.time_ns(), int(is_refused))
        os.write(journal, f"{' '.join(map(str, words))}\n".encode())
        return ConsumeStatus.RECONSUME_LATER if is_refused else ConsumeStatus.CONSUME_SUCCESS

    with Consumer(
        options.lake, options.group, [TOPIC], session_timeout_ms=SESSION_TIMEOUT_MS
    ) as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
        consumer.run(
            listen,
            threads=2,
            retries_max=RETRIES_MAX,
            retry_delays_ms=RETRY_DELAYS_MS,
            commit_interval_ms=300,
        )


if __name__ == "__main__":
    main()
