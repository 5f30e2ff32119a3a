"""The facts and problems of a lake as one screen of text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pipelines.health.facts import Facts, LakeFacts
from pipelines.health.problems import problems, unknown_problems
from pipelines.output import ago, printable, size, span, to_machine
from txlake._counted import counted

if TYPE_CHECKING:
    from pipelines.publish.status import PublisherStatus

PUBLISHER_COLUMNS: Final = (
    "publisher",
    "lag",
    "oldest_at",
    "active",
    "standby",
    "stopped_at",
    "cause",
    "reason",
)
_NAME = 15
_GROUPS: Final = 5
_STEPS: Final = 4
_NOT_KNOWN = "not known"


def lines(facts: Facts) -> list[str]:
    """Returns the screen, line by line; texts from producers are escaped."""
    return [printable(line) for line in _lines(facts)]


def _lines(facts: Facts) -> Iterator[str]:
    unknown_names = unknown_problems(facts)

    yield headline(facts)

    for problem in problems(facts):
        yield f"  {problem.name}: {problem.words}"
        yield f"  {'':{len(problem.name)}}  -> {problem.command}"

    if unknown_names:
        yield f"  not known: {', '.join(unknown_names)} ({why_unknown(facts)})"

    yield ""
    for name, text in status_lines(facts):
        yield f"{name:{_NAME}}{text}"


def headline(facts: Facts) -> str:
    """Returns whether all is well, in words."""
    known = problems(facts)
    if known:
        return counted(len(known), "problem")
    return "no known problems" if unknown_problems(facts) else "no problems"


def why_unknown(facts: Facts) -> str:
    """Returns why the state of some problems is not known."""
    return facts.kafka_error or "--conf FILE tells how to ask Kafka, and the limits"


def status_lines(facts: Facts) -> Iterator[tuple[str, str]]:
    """Returns each fact's name and text; a row without a name continues the fact before it."""
    lake = facts.lake
    yield "job", _job(facts, lake)

    if facts.drivers is not None:
        yield "standby", ", ".join(facts.drivers.standby) or "none"

    for number, lag in enumerate(facts.lags or ()):
        yield ("behind Kafka" if number == 0 else ""), _lag(lag, lake.now_ms)
    if facts.lags is None:
        yield "behind Kafka", _NOT_KNOWN

    yield "pending", _since(lake.pending, lake.oldest_at, lake.now_ms)

    waiting = [group for group in lake.groups if group["pending"] or group["unanswered"]]

    for group in waiting[:_GROUPS]:
        oldest = _since(group["pending"], group["oldest_at"], lake.now_ms)
        text = f"  {group['producer_group']}: {oldest}"
        if group["unanswered"]:
            text += f", newest checks unanswered: {group['unanswered']} of {group['of_checks']}"
        yield "", text

    if len(waiting) > _GROUPS:
        yield "", f"  {counted(len(waiting) - _GROUPS, 'more group')}: txlake groups"

    yield (
        "given up",
        f"{lake.given_up} in the last hour; {lake.discarded} can still be ended",
    )

    yield "undeliverable", str(lake.undeliverable)

    text = str(lake.delayed)
    if lake.next_delayed_at is not None:
        text += f", the next {ago(lake.next_delayed_at, lake.now_ms)}"
    yield "delayed", text

    if lake.refused:
        yield "consumers", _refused(lake)

    for number, publisher in enumerate(facts.publishers or ()):
        yield ("publishers" if number == 0 else ""), _publisher(publisher, lake.now_ms)

    times = [
        f"{step['step']} {step['p50_ms']} / {step['p99_ms']} ms" for step in lake.steps[:_STEPS]
    ]
    yield "epoch times", "; ".join(times) or _NOT_KNOWN

    if lake.state_rows is not None and lake.state_bytes is not None:
        yield "state", f"{counted(lake.state_rows, 'row')}, {size(lake.state_bytes)} in memory"
    if lake.free_bytes is not None and lake.disk_bytes is not None:
        yield "disk", f"{size(lake.free_bytes)} of {size(lake.disk_bytes)} free"

    floor = "none yet"
    if lake.floor_at is not None:
        floor = f"epoch {lake.floor_epoch}, {ago(lake.floor_at, lake.now_ms)}"
    yield "floor", floor


def _job(facts: Facts, lake: LakeFacts) -> str:
    text = "no epoch yet"
    if lake.epoch_at is not None:
        text = f"epoch {lake.epoch}, {ago(lake.epoch_at, lake.now_ms)}"
    if facts.drivers is None:
        return text if lake.owner is None else f"{text} by {lake.owner}"
    return f"{text}; active: {facts.drivers.active or 'none'}"


def _refused(lake: LakeFacts) -> str:
    """Returns how many messages the consumer groups have refused, in words."""
    dead = sum(row["dead"] for row in lake.refused)
    dead_at = [row["dead_oldest_at"] for row in lake.refused if row["dead"]]
    retrying = sum(row["retrying"] for row in lake.refused)
    due_at = [row["due_at"] for row in lake.refused if row["retrying"]]

    text = f"dead: {_since(dead, min(dead_at, default=None), lake.now_ms)}; retrying: {retrying}"
    return text if not due_at else f"{text}, the next {ago(min(due_at), lake.now_ms)}"


def _publisher(publisher: PublisherStatus, now_ms: int) -> str:
    if publisher.unknown_reason is not None:
        return f"{publisher.publisher}: {_NOT_KNOWN}"

    text = f"{publisher.publisher}: {_since(publisher.lag, publisher.oldest_at, now_ms)}"
    text += f"; active: {publisher.active or 'none'}"
    if publisher.standbys:
        text += f"; standby: {', '.join(publisher.standbys)}"
    return text if publisher.stop is None else f"{text}; stopped"


def publisher_rows(facts: Facts) -> list[dict[str, Any]]:
    """Returns the publishers as rows. Output: PUBLISHER_COLUMNS; instants in ms."""
    return [
        {
            "publisher": publisher.publisher,
            "lag": None if publisher.unknown_reason else publisher.lag,
            "oldest_at": publisher.oldest_at,
            "active": publisher.active,
            "standby": list(publisher.standbys),
            "stopped_at": None if publisher.stop is None else publisher.stop.at,
            "cause": None if publisher.stop is None else publisher.stop.cause,
            "reason": publisher.unknown_reason if publisher.stop is None else publisher.stop.reason,
        }
        for publisher in facts.publishers or ()
    ]


def _lag(lag: Any, now_ms: int) -> str:
    if not lag.records:
        return f"{lag.topic}: 0"
    waited = _NOT_KNOWN if lag.oldest_at is None else span(max(0, now_ms - lag.oldest_at))
    return f"{lag.topic}: {counted(lag.records, 'record')}, {waited}"


def _since(count: int, oldest_at: int | None, now_ms: int) -> str:
    return str(count) if oldest_at is None else f"{count}, the oldest {ago(oldest_at, now_ms)}"


def as_json(facts: Facts) -> dict[str, Any]:
    """Returns all facts and problems as plain values; instants as text."""
    lake = {name: value for name, value in vars(facts.lake).items() if name != "plan"}
    lags = None if facts.lags is None else [asdict(lag) for lag in facts.lags]

    return {
        "is_well": not problems(facts),
        "problems": [
            {"name": problem.name, "words": problem.words, "command": problem.command}
            for problem in problems(facts)
        ],
        "unknown": unknown_problems(facts),
        **{name: _plain(name, value) for name, value in lake.items()},
        "pending": facts.lake.pending,
        "oldest_at": _plain("oldest_at", facts.lake.oldest_at),
        "lags": _plain("lags", lags),
        "behind_ms": facts.lag_ms,
        "drivers": None if facts.drivers is None else asdict(facts.drivers),
        "groups_without_topic": facts.groups_without_topic,
        "publishers": None if facts.publishers is None else _plain("", publisher_rows(facts)),
        "kafka_trouble": facts.kafka_error,
    }


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(key, item) for key, item in value.items()}
    return to_machine(name, value)
