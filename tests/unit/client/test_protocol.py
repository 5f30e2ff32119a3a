"""The wire form's names, numbers and patterns."""

from __future__ import annotations

import pytest

from txlake import protocol


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        (protocol.GROUP_PATTERN, "a.B_9-", True),
        (protocol.GROUP_PATTERN, "", False),
        (protocol.GROUP_PATTERN, "g" * 127, True),
        (protocol.GROUP_PATTERN, "g" * 128, False),
        (protocol.GROUP_PATTERN, "a\n", False),
        (protocol.TRANSACTION_ID_PATTERN, "A-b_9", True),
        (protocol.TRANSACTION_ID_PATTERN, "a.b", False),
        (protocol.TRANSACTION_ID_PATTERN, "i" * 129, False),
        (protocol.OFFSETS_PATTERN, "17", True),
        (protocol.OFFSETS_PATTERN, "17,", True),
        (protocol.OFFSETS_PATTERN, "17,18,25,", True),
        (protocol.OFFSETS_PATTERN, "", False),
        (protocol.OFFSETS_PATTERN, ",", False),
        (protocol.OFFSETS_PATTERN, "17,,18", False),
        (protocol.OFFSETS_PATTERN, "-1", False),
        (protocol.OFFSETS_PATTERN, "1" * 19, False),
        (protocol.NUMBER_PATTERN, "٣", False),
        (protocol.SMALL_NUMBER_PATTERN, "9" * 9, True),
        (protocol.SMALL_NUMBER_PATTERN, "9" * 10, False),
    ],
)
def test_patterns_match_whole_ascii_texts(pattern: str, text: str, is_match: bool) -> None:
    assert protocol.matches(pattern, text) is is_match


def test_decisions_have_the_numbers_of_rocketmq() -> None:
    assert protocol.DECISION_CODES == {"COMMIT": "8", "ROLLBACK": "12", "UNKNOWN": "0"}
    assert protocol.DECISIONS["12"] == protocol.ROLLBACK


def test_an_operation_names_its_halves_and_their_ids_in_one_order() -> None:
    assert protocol.operation_body([17, 18]) == b"17,18,"
    headers = protocol.operation_headers("shop", "COMMIT", ["a", "b"], [("REMARK", "x")])
    assert headers == [
        ("TAGS", b"d"),
        ("PGROUP", b"shop"),
        ("TRAN_TYPE", b"8"),
        ("UNIQ_KEY", b"a,b"),
        ("REMARK", b"x"),
    ]
    assert [name for name, _ in headers] == [
        name for name in protocol.OP_HEADERS if name in dict(headers)
    ]
    with pytest.raises(KeyError):
        protocol.operation_headers("shop", "MAYBE", [])


def test_a_check_has_the_same_id_however_often_it_is_sent() -> None:
    assert protocol.check_id(1, 17, 0, 3) == "1-17-0-3"
    assert protocol.check_topic("shop") == "TRANS_CHECK_shop"


def test_a_name_of_any_kind_of_record_is_no_property() -> None:
    tables = (
        protocol.HALF_HEADERS,
        protocol.OP_HEADERS,
        protocol.ADMIN_HEADERS,
        protocol.CHECK_HEADERS,
    )
    for name in {name for table in tables for name in table}:
        assert not protocol.is_property(name), name
    assert protocol.is_property("colour")
    assert protocol.is_property("actor"), "names are told apart by their case"


def test_a_batch_has_room_for_a_record_at_the_limit_and_is_never_smaller_than_kafkas_own() -> None:
    assert protocol.record_bytes(b"body", [("ä", b"value"), ("b", b"")]) == 4 + 2 + 5 + 1
    assert protocol.record_bytes(None, []) == 0
    assert protocol.batch_bytes_max(1_048_576) == 1_114_112
    assert protocol.batch_bytes_max(1_000) == 1_048_588
    assert protocol.batch_bytes_max(protocol.MESSAGE_BYTES_LARGEST) == 1_000_000_000


def test_own_topics_are_no_real_topics() -> None:
    assert protocol.is_own_topic("half", ["half"], "ASK_")
    assert protocol.is_own_topic("ASK_me", [], "ASK_")
    assert not protocol.is_own_topic("orders", ["half"], "ASK_")


def test_delay_levels_are_those_of_rocketmq() -> None:
    levels = protocol.delay_levels_ms()
    assert len(levels) == 18
    assert (levels[0], levels[4], levels[17]) == (1_000, 60_000, 7_200_000)
    assert protocol.delay_levels_ms("2d") == (172_800_000,)


@pytest.mark.parametrize("levels", ["", "5", "s", "1w", "0s", "-1s", "1.5s", "1s,5s"])
def test_a_delay_level_that_cannot_be_read_is_refused(levels: str) -> None:
    with pytest.raises(ValueError, match="delay level"):
        protocol.delay_levels_ms(levels)
