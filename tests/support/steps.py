"""The steps of a story: what lands in an epoch, and where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.history import START_AT, History, Row
from txlake import protocol as p

Step = Callable[[History], None]
T_MS = START_AT  # epoch_at of the first epoch


def world_of(steps: Sequence[Step]) -> Row:
    """Return the world that the steps tell; its first epoch is at T_MS."""
    history = History()
    history.epoch(0)
    for step in steps:
        step(history)
    return history.world()


def parameters(**values: Any) -> Step:
    """Set parameters, from the first epoch on."""
    return lambda history: history.parameters.update(values)


def later(ms: int = 1_000, **values: Any) -> Step:
    """Begin the next epoch, so many ms after the one before; `values`: its parameters."""
    return lambda history: history.epoch(ms / 1_000, **values)


def known(behind_ms: int | None, halves_behind_ms: int | None = 0) -> Step:
    """Let known_at be so far behind epoch_at; None: nothing is known yet."""
    return lambda history: history.known(behind_ms, halves_behind_ms)


def floor(offset: int) -> Step:
    """Let the floor of half queue 0 stand there, from this epoch on."""
    return lambda history: history.floor(offset)


def half(transaction_id: str = "", **columns: Any) -> Step:
    """Land a half; it is 500 ms old and in no set."""
    return lambda history: history.half(transaction_id, **columns)


def member(seq: int, size: int, transaction_id: str = "set", **columns: Any) -> Step:
    """Land a half of a set."""
    return half(transaction_id, tran_seq=seq, tran_size=size, **columns)


def commit(*offsets: int, **columns: Any) -> Step:
    """Land a COMMIT of these halves; it carries no transaction ids."""
    return lambda history: history.end(p.COMMIT, *offsets, **columns)


def rollback(*offsets: int, **columns: Any) -> Step:
    """Land a ROLLBACK."""
    return lambda history: history.end(p.ROLLBACK, *offsets, **columns)


def unknown(*offsets: int, **columns: Any) -> Step:
    """Land an UNKNOWN."""
    return lambda history: history.end(p.UNKNOWN, *offsets, **columns)


def unreadable_operation(body: str, tran_type: str = "8") -> Step:
    """Land an operation that cannot be read."""
    as_sent: dict[str, Any] = {"body": body, "tran_type": tran_type}
    return lambda history: history.end(None, half_offsets=None, error="bad_offsets", **as_sent)


def schedule(**columns: Any) -> Step:
    """Land a schedule record; it is 300 ms old."""
    return lambda history: history.schedule(**columns)


def resume(target: str) -> Step:
    """Land an operator's RESUME."""
    return command(p.RESUME, target)


def resend(target: str) -> Step:
    """Land an operator's RESEND."""
    return command(p.RESEND, target)


def cancel(target: str) -> Step:
    """Land an operator's CANCEL."""
    return command(p.CANCEL, target)


def create_topic(target: str) -> Step:
    """Land an operator's CREATE_TOPIC. Input: name and queue count, `orders:4`."""
    return command(p.CREATE_TOPIC, f"topic:{target}")


def alter_topic(target: str) -> Step:
    """Land an operator's ALTER_TOPIC. Input: name, config and value, `orders:retention.ms=1`."""
    return command(p.ALTER_TOPIC, f"config:{target}")


def command(name: str, target: str | None = None, error: str | None = None) -> Step:
    """Land an operator's command; with an `error` it cannot be read."""
    return lambda history: history.command(name, target, error)
