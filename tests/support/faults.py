"""What a store can do wrong, and with which requests: values, which go from process to process."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

LOG, DATA, LIST, BUCKET = "log", "data", "list", "bucket"
KINDS = (LOG, DATA, LIST, BUCKET)


@dataclass(frozen=True)
class Request:
    """One request of a client. Input: `target`: path and query, as the client sent them."""

    method: str
    target: str

    @property
    def key(self) -> str:
        """Returns the key of the object; empty if the request names none."""
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2]

    @property
    def kind(self) -> str:
        """Returns what it is about: a `list`, Delta's `log`, other `data`, the `bucket` itself."""
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if self.method == "GET" and not self.key and {"prefix", "list-type"} & set(query):
            return LIST
        if not self.key:
            return BUCKET
        return LOG if "_delta_log/" in self.key else DATA


@dataclass(frozen=True)
class Status:
    """The server is not asked; the client gets this answer."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(frozen=True)
class Throttle:
    """Requests beyond a rate get an answer without asking the server."""

    per_second: int
    status: Status = Status()


@dataclass(frozen=True)
class CutBefore:
    """The connection ends without an answer; the server is not asked."""


@dataclass(frozen=True)
class CutWithin:
    """The connection ends within the body of the answer, after its half."""


@dataclass(frozen=True)
class LostAnswer:
    """The server does what is asked; the connection ends before the client gets the answer."""


@dataclass(frozen=True)
class Unconditional:
    """The condition of the request is taken away, as by a store that knows no conditional PUT.

    Its signature is wrong then: the server must not look at signatures.
    """


@dataclass(frozen=True)
class Slow:
    """The request waits before it is passed on."""

    seconds: float


@dataclass(frozen=True)
class Together:
    """Requests wait for one another, until so many can be passed on at once."""

    count: int


What = Status | Throttle | CutBefore | CutWithin | LostAnswer | Unconditional | Slow | Together


@dataclass(frozen=True)
class Fault:
    """What goes wrong, with which requests: all that match, but for what `every` and `times` say.

    Input: `method`, `kind`: empty for all; `key`: a regular expression that is searched for;
    `every`: each so-many-th matching request; `times`: how often at most.
    """

    what: What
    method: str = ""
    kind: str = ""
    key: str = ""
    every: int = 1
    times: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("", *KINDS):
            raise ValueError(f"kind {self.kind!r}: one of {KINDS} is allowed")
