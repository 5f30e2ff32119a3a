"""The cases of `tests/vectors.json`: given, and why. What follows from them our code says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txlake import protocol as p

GROUP = "shop"
SECRETS = {
    "k1": "0123456789abcdef0123456789abcdef",
    "k2": "another secret of 32 bytes or so",
    "anna": "the secret of an operator: 32 bytes",
}
Header = tuple[str, "bytes | None"]
Record = tuple[list[Header], "bytes | None"]

HALF_QUEUES = [
    (topic, queue_id, count)
    for topic, queue_id in (("orders", 0), ("orders", 1), ("orders", 10), ("a.b_c-d", 999_999_999))
    for count in (1, 3, 4, 7)
]

ORDERING_KEYS = [
    (key, queues)
    for key in ("c-7", "c-8", "ä", "21", "foobar", "abc", "a-little-bit-longer-string", "名", " ")
    for queues in (1, 4, 7, 12)
]


@dataclass(frozen=True)
class HalfCase:
    """A half message as somebody sends it."""

    why: str
    headers: tuple[Header, ...]
    value: bytes | None = b'{"order": 1}'


LEAST: tuple[Header, ...] = (
    (p.PGROUP, b"shop"),
    (p.UNIQ_KEY, b"tx1"),
    (p.REAL_TOPIC, b"orders"),
)
SET = ((p.TRAN_SIZE, b"2"), (p.TRAN_SEQ, b"1"))
HALVES = [
    HalfCase("the least that a half needs", LEAST),
    HalfCase("any order of headers can be read", LEAST[::-1]),
    HalfCase("a null value is legal", LEAST, None),
    HalfCase(
        "all that a producer can ask for",
        (
            (p.TRAN_MSG, b"true"), *LEAST, (p.REAL_QID, b"1"), (p.KEYS, b"o-1"), (p.TAGS, b"new"),
            (p.DELAY_MS, b"1500"), (p.CHECK_IMMUNITY, b"60"), (p.BORN_TIMESTAMP, b"1700000000000"),
            (p.TXV, b"1"), ("colour", b"red"),
        ),
    ),
    HalfCase("the second of two messages of a transaction", (*LEAST, *SET)),
    HalfCase("a set of one, for who sends halves again", (*LEAST, (p.TRAN_SIZE, b"1"),
                                                          (p.TRAN_SEQ, b"0"))),
    HalfCase("of a name that stands twice the first counts", (*LEAST, (p.REAL_TOPIC, b"bills"))),
    HalfCase("it counts too when it cannot be read", ((p.REAL_TOPIC, b"a/b"), *LEAST)),
    HalfCase("an optional header that cannot be read counts as absent",
             (*LEAST, (p.REAL_QID, b"-1"), (p.CHECK_IMMUNITY, b"1.5"))),
    HalfCase("so does one that is null", (*LEAST, (p.KEYS, None), (p.REAL_QID, None))),
    HalfCase("a name of another kind of record is no property",
             (*LEAST, (p.ACTOR, b"me"), ("colour", b"red"))),
    HalfCase("a null PGROUP is none", ((p.PGROUP, None), *LEAST[1:])),
    HalfCase("no id", (LEAST[0], LEAST[2])),
    HalfCase("a number is ASCII digits", (*LEAST, (p.TRAN_SIZE, "٢".encode()),
                                          (p.TRAN_SEQ, b"1"))),
    HalfCase("a wire version that is not 1", (*LEAST, (p.TXV, b"2"))),
]  # fmt: skip


@dataclass(frozen=True)
class OperationCase:
    """An operation as somebody sends it. `added` comes after the signature."""

    why: str
    headers: tuple[tuple[str, str], ...]
    value: bytes = b"17,"
    queue_id: int = 2
    key: str | None = "k1"
    added: tuple[tuple[str, str], ...] = ()


def ends(code: str, ids: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Returns an operation's headers."""
    return ((p.PGROUP, "shop"), (p.TRAN_TYPE, code), (p.UNIQ_KEY, ids), *more)


ANSWER = ((p.FROM_CHECK, "true"), (p.CHECK_ID, "2-17-0-1"))
OPERATIONS = [
    OperationCase("the least that an operation needs", ends("8", "tx1")),
    OperationCase("as the SDK writes it", ((p.TAGS, "d"), *ends("8", "tx1"), (p.TXV, "1"))),
    OperationCase("ROLLBACK of a transaction of three messages", ends("12", "tx1,tx1,tx1"),
                  b"17,18,25,"),
    OperationCase("the answer to a check", ends("8", "tx1", *ANSWER)),
    OperationCase("UNKNOWN, with a remark that is not ASCII",
                  ends("0", "tx1", *ANSWER, (p.REMARK, "läuft noch"))),
    OperationCase("signed with the group's other key", ends("8", "tx1"), key="k2"),
    OperationCase("an operator's: without an id, under an operator's key",
                  ((p.PGROUP, "shop"), (p.TRAN_TYPE, "8"), (p.ACTOR, "anna"), (p.REASON, "stuck")),
                  key="anna"),
    OperationCase("the last comma can be left out", ends("8", "tx1"), b"17"),
    OperationCase("no signature, and the group has a key", ends("8", "tx1"), key=None),
    OperationCase("another decision than was signed",
                  ends("8", "tx1"), added=((p.TRAN_TYPE, "12"),)),
    OperationCase("a remark that was not signed",
                  ends("8", "tx1"), added=((p.REMARK, "mine"),)),
    OperationCase("a group's key for an operator's operation",
                  ends("8", "tx1", (p.ACTOR, "anna"))),
    OperationCase("fewer ids than halves", ends("8", "tx1"), b"17,18,"),
    OperationCase("no offset", ends("8", "tx1"), b""),
    OperationCase("TRAN_TYPE is a number, not a name", ends("COMMIT", "tx1")),
]  # fmt: skip


def as_sent(headers: list[Header], value: bytes | None) -> Record:
    """Changes nothing."""
    return headers, value


@dataclass(frozen=True)
class CheckCase:
    """A check as the job sends it, and what became of it on its way.

    `known`: the client's keys; `missing`: protocol headers that are left out before it is signed.
    """

    why: str
    value: bytes | None = b'{"order": 1}'
    users: tuple[Header, ...] = ()
    keys: str | None = None
    tags: str | None = None
    offsets: tuple[int, ...] = (17,)
    group: str = GROUP
    is_body_omitted: bool = False
    missing: tuple[str, ...] = ()
    key: str | None = "k1"
    known: tuple[str, ...] = ("k1",)
    is_version_2_alone: bool = False
    changed: Callable[[list[Header], bytes | None], Record] = field(default=as_sent)


def _without_versions(headers: list[Header], value: bytes | None) -> Record:
    return [header for header in headers if header[0] != p.SIG], value


def _forged(headers: list[Header], value: bytes | None) -> Record:
    unsigned, _ = _without_versions(headers, value)
    return [*unsigned, (p.SIG, b"2:k1:" + b"0" * 64)], value


ODD: tuple[Header, ...] = (
    ("twice", b"first"),
    ("10", b"ten"),
    ("constructor", b"c"),
    ("9", b"nine"),
    ("twice", b"second"),
    ("__proto__", b"p"),
    ("\U0001f600", b"a name of four bytes"),
    ("\uff5e", b"before it by bytes, behind it in UTF-16"),
    ("null", None),
    ("empty", b""),
    ("bytes", b"\xff\x00"),
    ("SIG2", b"a property"),
)
CHECKS = [
    CheckCase("a value", users=(("colour", b"red"),), keys="o-1", tags="new"),
    CheckCase("a null value is `-,`, not the digest of nothing", None),
    CheckCase("an empty value has the digest of nothing", b""),
    CheckCase("a value that was left out", None, is_body_omitted=True),
    CheckCase("two messages of one transaction", offsets=(17, 18)),
    CheckCase("properties that a map of headers mistakes", users=ODD),
    CheckCase("the client has two keys, the job signs with the other one", key="k2",
              known=("k1", "k2")),
    CheckCase("version 2 alone, as from the next release on", is_version_2_alone=True),
    CheckCase("headers in another order: version 2 covers none", users=ODD[1:4],
              is_version_2_alone=True, changed=lambda headers, value: (headers[::-1], value)),
    CheckCase("a group without a key", key=None, known=()),
    CheckCase("a client without a key reads a signed one", known=()),
    CheckCase("no signature", changed=_without_versions),
    CheckCase("a signature that is none", changed=_forged),
    CheckCase("signed with a key that the client does not have", key="k2"),
    CheckCase("another value", changed=lambda headers, value: (headers, b'{"order": 2}')),
    CheckCase("a null value in place of an empty one", b"",
              changed=lambda headers, value: (headers, None)),
    CheckCase("a property more",
              changed=lambda headers, value: ([*headers, ("colour", b"red")], value)),
    CheckCase("two values of one property, exchanged", users=(("a", b"1"), ("a", b"2")),
              is_version_2_alone=True,
              changed=lambda headers, value: (
                  [*headers[:-3], headers[-2], headers[-3], headers[-1]], value)),
    CheckCase("another half", changed=lambda headers, value: (
        [(name, b"18" if name == p.HALF_QUEUE_OFFSET else data) for name, data in headers],
        value)),
    CheckCase("a check of another group", group="bank"),
    *(CheckCase(f"{name} is missing", missing=(name,))
      for name in (p.PGROUP, p.UNIQ_KEY, p.HALF_QUEUE_ID, p.HALF_QUEUE_OFFSET, p.CHECK_TIMES,
                   p.CHECK_ID)),
    CheckCase("KEYS, TAGS and REAL_TOPIC can be missing", missing=(p.REAL_TOPIC,)),
    CheckCase("no header at all", known=(), key=None, changed=lambda _, value: ([], value)),
    CheckCase("an id that is none", known=(), key=None, changed=lambda headers, value: (
        [(name, b"tx1,tx2" if name == p.UNIQ_KEY else data) for name, data in headers], value)),
    CheckCase("offsets that are none", known=(), key=None, changed=lambda headers, value: (
        [(name, b"17;18" if name == p.HALF_QUEUE_OFFSET else data) for name, data in headers],
        value)),
]  # fmt: skip
