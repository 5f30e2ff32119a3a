"""A call of a listener, and which of its messages are to come again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from txlake._consumed_message import ConsumedMessage
from txlake._counted import counted
from txlake.consume_status import ConsumeStatus

log = logging.getLogger("txlake.consumer")


# Returns None or CONSUME_SUCCESS: all are done. RECONSUME_LATER, or an exception: all come again.
# A sequence of them says it message by message.
Listener = Callable[[Sequence[ConsumedMessage]], Any]


def call_listener(listener: Listener, messages: Sequence[ConsumedMessage]) -> list[str | None]:
    """Returns for each message why it is to come again; None if it is done."""
    try:
        answer = listener(messages)
    except BaseException as error:  # the thread goes on, whatever the application raises
        first = messages[0]
        log.warning(
            "a listener failed at topic %s queue %d offset %d%s; it comes again later",
            first.topic,
            first.queue_id,
            first.queue_offset,
            f" and {len(messages) - 1} more" if len(messages) > 1 else "",
            exc_info=True,
        )
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace").decode()
        return [text] * len(messages)

    if isinstance(answer, Sequence) and not isinstance(answer, str | bytes):
        if len(answer) == len(messages):
            return [_reason(each) for each in answer]
        answers = counted(len(answer), "answer")
        text = f"the listener gave {answers} about {counted(len(messages), 'message')}"
        return [text] * len(messages)

    return [_reason(answer)] * len(messages)


def _reason(answer: Any) -> str | None:
    if answer is None or answer is ConsumeStatus.CONSUME_SUCCESS:
        return None
    if answer is ConsumeStatus.RECONSUME_LATER:
        return "RECONSUME_LATER"
    return f"the listener answered {answer!r:.200}, which is no ConsumeStatus"
