"""A call of a listener, and which of its messages are to come again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from txlake._consumed_message import ConsumedMessage
from txlake._counted import counted
from txlake._foreign_text import error_text, value_text
from txlake.consume_status import ConsumeStatus

log = logging.getLogger("txlake.consumer")

_NO_ANSWER_PAUSE_S = 0.2  # the messages of a call without an answer come again at once


# Returns None or CONSUME_SUCCESS: all are done. RECONSUME_LATER, or an exception: all come again.
# A sequence of them says it message by message.
Listener = Callable[[Sequence[ConsumedMessage]], Any]


class NoAnswerError(Exception):
    """A call of a listener that ended without an answer; the text says why."""


def call_listener(listener: Listener, messages: Sequence[ConsumedMessage]) -> list[str | None]:
    """Returns for each message why it is to come again; None if it is done.

    Without an answer it returns nothing: the messages are neither done nor refused.
    The application's code is the listener, and the methods of what it returns or raises, too.
    """
    try:
        return _reasons(listener(messages), len(messages))
    except NoAnswerError as error:
        with suppress(Exception):  # as below
            log.warning("%s; its messages come again", error)
        time.sleep(_NO_ANSWER_PAUSE_S)
        return []
    except BaseException as error:  # the thread goes on, whatever the application raises
        with suppress(Exception):  # a handler of the log can be the application's
            first = messages[0]
            log.warning(
                "a listener failed at topic %s queue %d offset %d%s; it comes again later",
                first.topic,
                first.queue_id,
                first.queue_offset,
                f" and {len(messages) - 1} more" if len(messages) > 1 else "",
                exc_info=True,
            )
        return [error_text(error, BaseException)] * len(messages)


def _reasons(answer: Any, count: int) -> list[str | None]:
    """Returns what an answer says of each of so many messages."""
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        return [_reason(answer)] * count

    if len(answer) == count:
        return [_reason(answer[index]) for index in range(count)]
    answers = counted(len(answer), "answer")
    return [f"the listener gave {answers} about {counted(count, 'message')}"] * count


def _reason(answer: Any) -> str | None:
    if answer is None or answer is ConsumeStatus.CONSUME_SUCCESS:
        return None
    if answer is ConsumeStatus.RECONSUME_LATER:
        return "RECONSUME_LATER"
    return f"the listener answered {value_text(answer, BaseException)}, which is no ConsumeStatus"
