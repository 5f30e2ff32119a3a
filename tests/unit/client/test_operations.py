"""The ends of transactions, where a signal's handler closes the producer while they are sent."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from tests.support.wait import wait_until
from txlake import ClosedError, ProducerOptions, SendError, TransactionProducer, protocol
from txlake._kafka import KafkaSender, client_settings
from txlake._operations import OperationBatcher

NOWHERE = "127.0.0.1:1"
OPTIONS = ProducerOptions(send_timeout_ms=600_000, close_timeout_ms=100)


def run_in_thread(name: str, call: Any) -> None:
    """Runs a call that could wait for itself."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    wait_until(lambda: not thread.is_alive(), f"the end of {name}")


def test_a_close_within_an_end_that_is_being_sent_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = TransactionProducer(NOWHERE, "shop", client={"log_level": 0}, options=OPTIONS)
    send = KafkaSender.send

    def close_and_send(*arguments: Any) -> None:
        producer.close()
        send(*arguments)

    monkeypatch.setattr(KafkaSender, "send", close_and_send)
    heard: list[bool] = []
    extra = [(protocol.REMARK, "is sent at once")]
    run_in_thread(
        "an end",
        lambda: producer._operations.add(0, [7], "tx", protocol.COMMIT, heard.append, extra),
    )
    assert heard == [False]


def test_a_send_that_waits_for_room_ends_with_the_producer() -> None:
    sender = KafkaSender(client_settings(NOWHERE, None), ProducerOptions(send_timeout_ms=1_000))

    class Full:
        poll = staticmethod(lambda _timeout_s: 0)
        flush = staticmethod(lambda _timeout_s: 0)

        def produce(self, *_arguments: Any, **_named: Any) -> None:
            sender.close(0.0)
            raise BufferError("Local: Queue full")

    sender._producer = Full()
    with pytest.raises((ClosedError, SendError)) as failure:
        sender.send("halves", 0, b"", [], lambda *_: None)
    assert failure.type is ClosedError


class Kept:
    """A sender that keeps the ends of each record, and reports them, until it is closed."""

    def __init__(self) -> None:
        self.records: list[tuple[list[str], list[str]]] = []
        self.is_closed = False

    def send(self, _topic: str, _queue: int, body: bytes, headers: Any, report: Any) -> None:
        if self.is_closed:
            raise ClosedError("the producer is closed")
        named = {name: value.decode() for name, value in headers}
        self.records.append(
            (re.findall(r"\d+", body.decode()), re.findall(r"\w+", named[protocol.UNIQ_KEY]))
        )
        report(None, None)


def close_at(line: int, batcher: OperationBatcher, sender: Kept, call: Any) -> bool:
    """Runs a call and closes before its Nth line, as a handler can. Output: whether it has one."""
    lines = 0

    def trace(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == line:
            sys.settrace(None)
            batcher.close()
            sender.is_closed = True
        return trace

    def traced() -> None:
        sys.settrace(trace)
        try:
            call()
        finally:
            sys.settrace(None)

    run_in_thread(f"an end that a close comes into at line {line}", traced)
    return lines >= line


@pytest.mark.parametrize("before", [None, protocol.COMMIT, protocol.ROLLBACK])
def test_a_close_within_any_line_of_an_end_sends_and_reports_each_end_once(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setattr(OperationBatcher, "_run", lambda _: None)  # close() does not wait for it
    line = 0
    is_within = True

    while is_within:
        line += 1
        sender: Any = Kept()
        heard: dict[str, list[bool]] = {"earlier": [], "this": []}
        batcher = OperationBatcher(sender, "ops", "shop", 60_000, 50)
        if before is not None:
            batcher.add(0, [7], "earlier", before, heard["earlier"].append)

        is_within = close_at(
            line, batcher, sender,
            lambda batcher=batcher, heard=heard: batcher.add(
                0, [8, 9], "this", protocol.COMMIT, heard["this"].append
            ),
        )  # fmt: skip
        batcher.close()

        ids = [name for _, names in sender.records for name in names]
        assert all(len(offsets) == len(names) > 0 for offsets, names in sender.records), (
            line,
            sender.records,
        )
        assert ids.count("this") in (0, 2), line
        assert len(heard["this"]) == 1, (line, heard)
        assert heard["this"][0] is (ids.count("this") == 2), line
        assert len(heard["earlier"]) == (before is not None), (line, heard)

    assert line > 10


class Interrupted(Sequence[int]):
    """Offsets at which Ctrl-C comes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: Any) -> Any:
        raise KeyboardInterrupt


def test_an_end_that_is_interrupted_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OperationBatcher, "_run", lambda _: None)
    sender: Any = Kept()
    heard: list[bool] = []
    batcher = OperationBatcher(sender, "ops", "shop", 60_000, 50)
    batcher.add(0, [7], "earlier", protocol.COMMIT, heard.append)
    with pytest.raises(KeyboardInterrupt):
        batcher.add(0, Interrupted(), "this", protocol.COMMIT)

    batcher.close()
    assert sender.records == [(["7"], ["earlier"])]
    assert heard == [True]
