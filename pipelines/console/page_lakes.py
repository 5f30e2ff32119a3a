"""The lake of the pages: each thread that makes pages keeps its own, with the tables it has opened.

A page brings them up to date, where one with a new lake would read the log of each table anew.
"""

from __future__ import annotations

import threading

from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.lake.integrity import require_usable
from storage.lake.lake import Lake


class PageLakes:
    """The lake at one location, for the threads of a console."""

    def __init__(self, location: LakeLocation) -> None:
        self._location = location
        self._kept = threading.local()

    def open(self) -> Lake:
        """Returns this thread's lake, checked anew.

        If the check fails, the lake is opened anew: another one may be at this location by now.
        Errors: LakeError.
        """
        kept: Lake | None = getattr(self._kept, "lake", None)
        if kept is not None:
            try:
                require_usable(kept)
            except LakeError:
                self._kept.lake = None
            else:
                return kept

        lake = Lake(self._location)
        require_usable(lake)
        self._kept.lake = lake
        return lake
