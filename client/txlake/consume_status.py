"""How a listener ended with messages that it was handed."""

from __future__ import annotations

from enum import Enum


class ConsumeStatus(Enum):
    """What a listener answers: the messages are done, or they are to come again later."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
