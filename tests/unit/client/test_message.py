"""A message is checked when it is made, and encoded once."""

from __future__ import annotations

from typing import Any

import pytest

from txlake import Message, MessageError, protocol
from txlake._half import group_headers, half_queue_for, message_headers
from txlake._identifiers import TransactionIds
from txlake.message import PROTOCOL_HEADERS_BYTES_MAX

PROPERTIES_MAX = protocol.PROPERTIES_BYTES_MAX - PROTOCOL_HEADERS_BYTES_MAX
# name, value and two separators of REAL_TOPIC=t and p=
EMPTY_PROPERTY_BYTES = len("REAL_TOPIC") + len("t") + 2 + len("p") + 2


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"body": None},
        {"body": b""},
        {"topic": "a.B_c-9"},
        {"topic": "t" * 127},
        {"properties": {"ä": "ö", "empty": ""}},
        {"delay_level": 0},
        {"delay_level": 99},
        {"deliver_at": 0},
        {"deliver_after_ms": 5},
        {"queue_id": 0},
        {"queue_id": 9_999},
        {"check_immunity_time_s": 0},
        {"check_immunity_time_s": 999_999_999},
        {"keys": "", "tags": ""},
        {"properties": {"p": "x" * (PROPERTIES_MAX - EMPTY_PROPERTY_BYTES)}, "topic": "t"},
    ],
)  # fmt: skip
def test_these_messages_may_be_sent(fields: dict[str, Any]) -> None:
    Message(**{"topic": "orders", "body": b"x", **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"topic": ""}, "topic ''"),
        ({"topic": "a b"}, "topic 'a b'"),
        ({"topic": "täg"}, "topic"),
        ({"topic": "orders\n"}, "topic"),
        ({"topic": "t" * 128}, "topic"),
        ({"topic": None}, "topic None"),
        ({"topic": "."}, "not a name"),
        ({"topic": ".."}, "not a name"),
        ({"topic": protocol.HALF_TOPIC}, "machinery"),
        ({"topic": protocol.UNDELIVERABLE_TOPIC}, "machinery"),
        ({"topic": "TRANS_CHECK_any"}, "machinery"),
        ({"body": "text"}, "body: bytes or None, not str"),
        ({"body": bytearray(b"x")}, "bytearray"),
        ({"keys": 5}, "keys: a str, not int"),
        ({"tags": "\ud800"}, "cannot be written as UTF-8"),
        ({"properties": {"PGROUP": "x"}}, r"\['PGROUP'\] are names of the protocol"),
        ({"properties": {"": "x"}}, "not empty"),
        ({"properties": {"DELAY\0x": "5"}}, "librdkafka ends it at its NUL"),
        ({"properties": {5: "x"}}, "name 5"),
        ({"properties": None}, "properties None: a dict is allowed"),
        ({"properties": {"a": None}}, r"properties\['a'\]: a str, not NoneType"),
        ({"properties": {"a": "\ud800"}}, "UTF-8"),
        ({"delay_level": -1}, "delay_level -1: a whole number from 0"),
        ({"delay_level": True}, "delay_level True"),
        ({"delay_level": 1.0}, "delay_level 1.0"),
        ({"deliver_at": -1}, "deliver_at -1"),
        ({"deliver_after_ms": -1}, "deliver_after_ms -1"),
        ({"delay_level": 1, "deliver_at": 2}, "only one of them"),
        ({"deliver_at": 1, "deliver_after_ms": 2}, "only one of them"),
        ({"queue_id": -1}, "queue_id -1"),
        ({"queue_id": 10_000}, "queue_id 10000: a whole number from 0 to 9999"),
        ({"check_immunity_time_s": 1_000_000_000}, "check_immunity_time_s 1000000000"),
        ({"properties": {"p": "x" * (PROPERTIES_MAX - EMPTY_PROPERTY_BYTES + 1)}, "topic": "t"},
         f"{PROPERTIES_MAX} at most"),
        ({"properties": {"ä" * (PROPERTIES_MAX // 2): ""}}, f"{PROPERTIES_MAX} at most"),
    ],
)  # fmt: skip
def test_these_messages_may_not_be_sent(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError, match=said):
        Message(**{"topic": "orders", "body": b"x", **fields})


@pytest.mark.parametrize("name", sorted(protocol.RESERVED_HEADERS))
def test_no_name_of_the_protocol_is_a_property(name: str) -> None:
    with pytest.raises(MessageError, match=rf"\['{name}'\] are names of the protocol"):
        Message("orders", b"x", properties={"colour": "red", name: "x"})


def test_a_message_does_not_change_with_the_properties_it_was_made_from() -> None:
    properties = {"a": "1"}
    message = Message("orders", b"x", properties=properties)
    properties["a"] = "2"
    assert message.properties == {"a": "1"}
    assert message == Message("orders", b"x", properties={"a": "1"})
    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]


def test_headers_stand_in_protocol_order_and_the_users_follow() -> None:
    message = Message(
        "orders",
        b"x",
        keys="k",
        tags="t",
        properties={"z": "1", "a": "2"},
        deliver_at=77,
        queue_id=3,
        check_immunity_time_s=5,
    )
    headers = message_headers(message, group_headers("shop"), "id", 1000, (2, 1))
    names = [name for name, _ in headers]
    others = (protocol.DELAY, protocol.DELAY_MS)  # of three delays only one is allowed
    expected = [name for name in protocol.HALF_HEADERS if name not in others]
    assert names == [*expected, "z", "a"]
    assert dict(headers) == {
        "TRAN_MSG": b"true",
        "PGROUP": b"shop",
        "UNIQ_KEY": b"id",
        "REAL_TOPIC": b"orders",
        "REAL_QID": b"3",
        "KEYS": b"k",
        "TAGS": b"t",
        "DELIVER_AT": b"77",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": b"5",
        "BORN_TIMESTAMP": b"1000",
        "TRAN_SIZE": b"2",
        "TRAN_SEQ": b"1",
        "TXV": b"1",
        "z": b"1",
        "a": b"2",
    }


def test_a_delay_is_a_level_or_an_instant() -> None:
    def header(message: Message, name: str) -> bytes | None:
        return dict(message_headers(message, [], "id", 1000)).get(name)

    assert header(Message("t", b"", delay_level=4), "DELAY") == b"4"
    assert header(Message("t", b"", delay_level=0), "DELAY") is None
    assert header(Message("t", b"", deliver_after_ms=50), "DELAY_MS") == b"50"
    assert header(Message("t", b""), "DELIVER_AT") is None


def test_ids_sort_by_time_and_never_repeat() -> None:
    one, two = TransactionIds(), TransactionIds()
    ids = [maker.next(now) for now in (1, 2, 1 << 40) for maker in (one, two) for _ in range(9)]
    assert len(set(ids)) == len(ids)
    assert [identifier[:12] for identifier in ids] == sorted(identifier[:12] for identifier in ids)
    assert all(len(identifier) == 32 for identifier in ids)
    assert protocol.matches(protocol.TRANSACTION_ID_PATTERN, ids[0])


def test_a_forked_child_makes_other_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = TransactionIds()
    before = ids.next(1)
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert ids.next(1)[12:24] != before[12:24]


def test_messages_for_one_real_queue_always_go_to_the_same_half_queue() -> None:
    chosen = {half_queue_for("orders", queue_id, 4) for queue_id in range(32)}
    assert chosen == {0, 1, 2, 3}
    # For ever: another value would break the order of what is in flight at an upgrade.
    assert half_queue_for("orders", 0, 4) == 2
    assert half_queue_for("orders", 0, 1) == 0
