"""What the job would not obey is refused before anything is sent: too large, too far ahead."""

from __future__ import annotations

from typing import Any

import pytest

from txlake import Message, MessageError, Producer, ProducerOptions, TransactionProducer, protocol
from txlake._half import checked_headers, group_headers
from txlake.testing import FakeTransactionProducer

NOWHERE = "127.0.0.1:1"
NOW_MS = 1_000_000
MONTH_MS = 2_592_000_000
GROUP = group_headers("shop")
# With all that stands around it, so that the record has 1000 bytes.
OPTIONS = ProducerOptions(message_bytes_max=1_000, deliver_at_max_ms=5_000)
HEADERS_BYTES = protocol.record_bytes(
    None,
    checked_headers(Message("orders", b"", properties={"ä": "1"}), GROUP, "id", NOW_MS, OPTIONS),
)


def check(options: ProducerOptions = OPTIONS, body: bytes | None = b"", **fields: Any) -> None:
    message = Message("orders", body, properties={"ä": "1"}, **fields)
    checked_headers(message, GROUP, "id", NOW_MS, options)


def test_headers_are_counted_by_their_bytes() -> None:
    names = ("TRAN_MSG", "PGROUP", "UNIQ_KEY", "REAL_TOPIC", "BORN_TIMESTAMP", "TXV", "xx")
    values = ("true", "shop", "id", "orders", str(NOW_MS), "1", "1")
    assert len("".join(names + values)) == HEADERS_BYTES


def test_a_record_at_the_limit_may_be_sent_and_one_byte_more_is_refused_with_both_numbers() -> None:
    body = b"x" * (1_000 - HEADERS_BYTES)
    check(body=body)
    said = rf"^body of {len(body) + 1} bytes: 1001 bytes with its headers, .* = 1000 at most$"
    with pytest.raises(MessageError, match=said):
        check(body=body + b"x")
    member = Message("orders", body, properties={"ä": "1"})
    with pytest.raises(MessageError, match="1019 bytes"):  # with TRAN_SIZE 2 and TRAN_SEQ 1
        checked_headers(member, GROUP, "id", NOW_MS, OPTIONS, (2, 1))


def test_a_level_beyond_the_last_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    options = ProducerOptions(delay_levels="1s 7s")
    for level in (2, 3, 3):
        check(options, delay_level=level)
    assert [record.getMessage() for record in caplog.records] == [
        "delay_level 3: there are 2 levels, and the last one counts"
    ]


@pytest.mark.parametrize("over", [0, 1])
def test_the_limit_is_counted_to_the_byte_with_the_usual_options_too(over: int) -> None:
    body = b"x" * (protocol.MESSAGE_BYTES_MAX - HEADERS_BYTES + over)
    if not over:
        check(ProducerOptions(), body)
    else:
        with pytest.raises(MessageError, match=r"1048577 bytes .* message_bytes_max = 1048576"):
            check(ProducerOptions(), body)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"deliver_after_ms": 5_000}, None),
        ({"deliver_after_ms": 5_001}, "deliver_after_ms 5001: deliver_at_max_ms = 5000 at most"),
        ({"deliver_at": 0}, None),
        ({"deliver_at": NOW_MS + 5_000}, None),
        ({"deliver_at": NOW_MS + 5_001},
         "deliver_at 1005001 is 5001 ms ahead: deliver_at_max_ms = 5000 at most"),
        ({"deliver_at": NOW_MS // 1_000 + 1},
         "deliver_at 1001 looks like seconds; in epoch ms it is 1001000"),
        ({"delay_level": 99}, None),
    ],
)  # fmt: skip
def test_what_the_job_would_deliver_early_is_refused_with_both_numbers(
    fields: dict[str, Any], said: str | None
) -> None:
    if said is None:
        check(**fields)
    else:
        with pytest.raises(MessageError, match=f"^{said}$"):
            check(**fields)


BEYOND = [
    pytest.param(Message("orders", b"", deliver_after_ms=MONTH_MS + 1), id="too far ahead"),
    pytest.param(Message("orders", b"x" * protocol.MESSAGE_BYTES_MAX), id="too large"),
]


@pytest.mark.parametrize("message", BEYOND)
def test_no_producer_sends_what_is_beyond_a_limit(message: Message) -> None:
    """No broker is there: a message that was sent would end in another error."""
    fine, client = Message("orders", b"fine"), {"log_level": 0}
    options = ProducerOptions(send_timeout_ms=500, close_timeout_ms=500)
    execute = pytest.fail
    with TransactionProducer(NOWHERE, "shop", client=client, options=options) as producer:
        with pytest.raises(MessageError, match="at most"):
            producer.send_message_in_transaction(message, execute=execute)
        with pytest.raises(MessageError, match="at most"):
            producer.send_messages_in_transaction([fine, message], execute=execute)
    with Producer(NOWHERE, client=client, options=options) as plain:
        with pytest.raises(MessageError, match="at most"):
            plain.send(message)
        with pytest.raises(MessageError, match="at most"):
            plain.send_all([fine, message])
    fake = FakeTransactionProducer()
    with pytest.raises(MessageError, match="at most"):
        fake.send_messages_in_transaction([fine, message], execute=execute)
    assert fake.halves == []


def test_limits_are_options() -> None:
    options = ProducerOptions(
        message_bytes_max=2 * protocol.MESSAGE_BYTES_MAX, deliver_at_max_ms=2 * MONTH_MS
    )
    check(options, b"x" * protocol.MESSAGE_BYTES_MAX, deliver_after_ms=MONTH_MS + 1)
    defaults = ProducerOptions()
    assert (defaults.message_bytes_max, defaults.deliver_at_max_ms) == (1_048_576, MONTH_MS)
    with pytest.raises(ValueError, match="message_bytes_max = 1000000000: 999934464 or less"):
        ProducerOptions(message_bytes_max=1_000_000_000)
