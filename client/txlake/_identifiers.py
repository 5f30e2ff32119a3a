"""Transaction ids that sort by time."""

from __future__ import annotations

import itertools
import os
import secrets


class TransactionIds:
    """A maker of ids of 32 hex digits: 12 of time, 12 of this maker, 8 of a counter.

    Time comes first so that the statistics of table files prune by id. Ids are unique across
    processes and forks: in a forked child the maker becomes another maker.
    """

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._maker = secrets.token_hex(6)
        self._numbers = itertools.count()
        self._prefix = (-1, "")  # the ids of one millisecond begin alike
        self._process_id = os.getpid()

    def next(self, now_ms: int) -> str:
        """Returns the next id. Units: `now_ms` epoch ms."""
        if os.getpid() != self._process_id:
            self._renew()
        made_at, prefix = self._prefix
        if made_at != now_ms:
            prefix = f"{now_ms:012x}{self._maker}"
            self._prefix = now_ms, prefix
        return f"{prefix}{next(self._numbers) & 0xFFFFFFFF:08x}"
