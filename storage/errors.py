"""The errors of a lake.

LakeError
|-- NotALakeError           there is no lake at that path, or something else is
|-- UnfinishedLakeError     a rebuild has begun the lake and not ended
|-- NewerLakeError          a newer version of txlake made it
|-- OlderLakeError          an older version made it, and this one cannot go on with it
|-- BrokenLakeError         a table, a file or rows are missing, damaged or another lake's
|   `-- MissingTableError   a table is missing; also deltalake's TableNotFoundError
|-- LakeLockedError         another driver has the lake's lock
|-- OwnerError              another driver has planned or committed this epoch
|-- StoreAwayError          the object store does not answer: try again
|-- StoreRefusedError       the object store refuses, or lacks what a lake needs
`-- DiskError               the disk refuses: rights, space, or a fault of it; nothing is lost
"""

from __future__ import annotations

from typing import Final

from deltalake.exceptions import TableNotFoundError

RESTORE_HINT: Final = (
    "put back what is missing from a copy, or `txlake verify` says what else is wrong and "
    "`txlake replay --into` makes a new lake from what was landed"
)


class LakeError(Exception):
    """A lake cannot be used as it is; the message says why and what to do."""


class NotALakeError(LakeError):
    """There is no lake at that path."""


class UnfinishedLakeError(LakeError):
    """A rebuild has begun this lake and has not ended."""


class NewerLakeError(LakeError):
    """The lake was made by a newer version of txlake."""


class OlderLakeError(LakeError):
    """The lake was made by an older version of txlake."""


class BrokenLakeError(LakeError):
    """Committed rows are missing or damaged; the message names the table.

    `problem`: what is wrong with that table alone, as the predicate of a sentence about it.
    """

    def __init__(self, text: str, problem: str = "") -> None:
        super().__init__(text)
        self.problem = problem or text


class MissingTableError(BrokenLakeError, TableNotFoundError):
    """A table is missing."""


class LakeLockedError(LakeError):
    """Another driver is writing the lake."""


class OwnerError(LakeError):
    """Another driver has planned or committed the epoch that this one was about to."""


class StoreAwayError(LakeError):
    """The object store does not answer. What was being done can be done again."""


class DiskError(LakeError):
    """The disk of the lake refuses. Nothing that was written is lost: no backup is needed."""


class StoreRefusedError(LakeError):
    """The object store refuses access, or cannot do what a lake needs."""
