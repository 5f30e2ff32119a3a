"""Queues that count how often they are compared: work by the square shows in few of them."""

from __future__ import annotations

from typing import ClassVar


class CountedQueue(tuple[str, int]):
    """A topic and a queue id. A look-up in a set compares once, in a list with each before it."""

    __slots__ = ()
    compared: ClassVar[int] = 0

    def __eq__(self, other: object) -> bool:
        CountedQueue.compared += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()
