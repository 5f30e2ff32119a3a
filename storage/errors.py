"""What can be wrong with a lake.

LakeError
|-- NotALakeError       there is no lake at that path, or something else is
|-- UnfinishedLakeError a rebuild has begun it and not ended
|-- NewerLakeError      a newer version made it
`-- LakeLockedError     another driver writes it
"""

from __future__ import annotations


class LakeError(Exception):
    """A lake cannot be used as it is; the message says why and what to do."""


class NotALakeError(LakeError):
    """There is no lake at that path."""


class UnfinishedLakeError(LakeError):
    """A rebuild has begun this lake and has not ended."""


class NewerLakeError(LakeError):
    """The lake was made by a newer version of txlake."""


class LakeLockedError(LakeError):
    """Another driver is writing the lake."""
