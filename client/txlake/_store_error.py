"""What an error of an object store, or of its client, means, for the SDK and the job.

delta-rs and Arrow raise an OSError or a DeltaError with a long, coloured text. Its words are all
that there is to tell them by. What a user can do about it, the SDK and the job say each in its own
words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_STORE_ERROR = re.compile(
    r"Generic (S3|MicrosoftAzure|GCS|HDFS)|AWS Error|performing (GET|PUT|HEAD|POST|DELETE|list)|"
    r"lacked the necessary privileges|not authorized|Unable to (parse|recognise) .*(url|URL)|"
    r"credential|IMDS|S3FileSystem"
)
_REFUSED = re.compile(
    r"40[13] [A-Z]\w+|ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY|"
    r"INVALID_CLIENT_TOKEN|privileges|not authenticated|not authorized|credential"
)
_NO_CREDENTIALS = re.compile(r"loading credentials|credential provider|IMDS")
_NO_BUCKET = re.compile(r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|NoSuchContainer")
_NO_TLS = re.compile(r"URL scheme is not allowed")
_GONE = re.compile(r"404 Not Found|RESOURCE_NOT_FOUND|NO_SUCH_KEY|NotFound|not found")
_CODE = re.compile(r"<Code>(\w+)</Code>|AWS Error ([A-Z_0-9]+)|(\d{3} [A-Z][a-z]+( [A-Z][a-z]+)*)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE: Final = "↳"  # delta-rs writes each error's cause behind one, the innermost last
_MESSAGE_MAX: Final = 160  # characters


class StoreProblem(Enum):
    """The kinds of errors; another try helps with AWAY alone."""

    NO_BUCKET = auto()
    NO_TLS = auto()
    NO_CREDENTIALS = auto()
    REFUSED = auto()
    AWAY = auto()


@dataclass(frozen=True)
class StoreFailure:
    """An error of a store. `summary`: a few words of it, without URLs, which can hold secrets."""

    problem: StoreProblem
    summary: str


_BY_WORDS: Final = (
    (_NO_BUCKET, StoreProblem.NO_BUCKET),
    (_NO_TLS, StoreProblem.NO_TLS),
    (_NO_CREDENTIALS, StoreProblem.NO_CREDENTIALS),
    (_REFUSED, StoreProblem.REFUSED),
)


def store_failure(error: BaseException) -> StoreFailure | None:
    """Returns the meaning of a store's error; None for other errors, and for a missing file."""
    plain = _COLOURS.sub("", str(error))
    text = " ".join(plain.replace(_CAUSE, " ").split())
    if not _STORE_ERROR.search(text):
        return None

    for words, problem in _BY_WORDS:
        if words.search(text):
            return StoreFailure(problem, _summary(plain))

    if isinstance(error, FileNotFoundError) or _GONE.search(text):
        return None
    return StoreFailure(StoreProblem.AWAY, _summary(plain))


def innermost(text: str) -> str:
    """Returns the innermost cause of an error of delta-rs, without its colours."""
    return _COLOURS.sub("", text).rpartition(_CAUSE)[2].strip()


def _summary(text: str) -> str:
    """Returns the code of a store's answer, or its first line without URLs."""
    code = _CODE.search(text)
    if code:
        return str(next(filter(None, code.groups())))

    cause = re.sub(r"\S+://\S+", "", innermost(text))
    return cause.strip().partition("\n")[0][:_MESSAGE_MAX]
