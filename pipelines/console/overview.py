"""The overview: what is wrong, since when and what to do; a line a stage; charts; the facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pipelines.console import query_params
from pipelines.console.charts import HEIGHT, WIDTH, charts, clock
from pipelines.console.render import page
from pipelines.console.urls import url
from pipelines.console.views import lake_of, site_of
from pipelines.health import dead_letters, report
from pipelines.health.facts import Facts
from pipelines.health.history import History, read_history
from pipelines.health.problems import page_of, problems, unknown_problems
from pipelines.output import ago, number_text, span
from storage.lake.lake import Lake
from txlake._counted import counted

_SPANS: Final = {"1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000, "7d": 604_800_000}
# Of more dead halves and messages the dead page alone says since when.
_DEAD_READ_MAX: Final = 1_000
# A publisher's `reason` is a sentence; in the other tables it is a code, and shown as one.
_PUBLISHER_COLUMNS: Final = (*report.PUBLISHER_COLUMNS[:-1], "why")
# The stage that a problem is about; of the others it is the lake.
_STAGES: Final = {
    "kafka_away": "kafka",
    "not_running": "job",
    "no_epoch": "job",
    "lag": "job",
    "consumer_gone": "consumers",
    "consumer_lag": "consumers",
    "consumer_dead": "consumers",
    "publisher_stopped": "publishers",
    "publisher_gone": "publishers",
    "publisher_lag": "publishers",
    "publisher_unknown": "publishers",
}


@dataclass(frozen=True)
class Stage:
    """One stage on a message's way: how far it is behind, and its rate, in words.

    `look`: good, bad or off, as the pill of a status.
    """

    title: str
    page: str
    look: str
    state: str
    lag: str
    rate: str
    more: str = ""


def overview(request: Request) -> Response:
    """Returns the overview: what is wrong, the stages, charts, the facts of `txlake status`."""
    site = site_of(request)
    since = request.query_params.get("since", "1h")
    if since not in _SPANS:
        raise query_params.BadQueryError(
            f"since = {since!r}: one of {', '.join(_SPANS)} is allowed"
        )

    lake = lake_of(request)
    facts = site.load_facts(lake)
    history = read_history(lake, facts.lake.now_ms, _SPANS[since], facts.lake.pending)
    present = problems(facts)
    dead_since = _dead_since(lake, facts)

    return page(
        request,
        "overview",
        facts=facts,
        headline=report.headline(facts),
        problems=[
            (problem, page_of(problem.name), dead_since.get(problem.name, problem.since_at))
            for problem in present
        ],
        unknown=unknown_problems(facts),
        why_unknown=report.why_unknown(facts),
        fact_lines=_group_facts(facts),
        publishers=[{**row, "why": row["reason"]} for row in report.publisher_rows(facts)],
        publisher_columns=_PUBLISHER_COLUMNS,
        stages=_stages(facts, history),
        chosen=since,
        spans=[(name, url("/", since=name)) for name in _SPANS],
        history=history,
        charts=charts(history),
        changes=[(clock(row["changed_at"], history), row) for row in history.changes[-10:]],
        axis=_axis(history),
        width=WIDTH,
        height=HEIGHT,
    )


def _dead_since(lake: Lake, facts: Facts) -> dict[str, int]:
    """Returns since when halves are given up, and messages undeliverable; ms.

    The facts do not tell. Of many nobody knows: a page would take long.
    """
    state = facts.lake
    if not 0 < state.undeliverable + state.discarded <= _DEAD_READ_MAX:
        return {}

    oldest: dict[str, int] = {}
    for row in dead_letters.read_dead(lake):
        name = "undeliverable" if row["target"].startswith("undeliverable:") else "given_up"
        oldest[name] = min(row["since"], oldest.get(name, row["since"]))
    return oldest


def _stages(facts: Facts, history: History) -> list[Stage]:
    """Returns the stages from Kafka to the consumers; publishers only where there are some."""
    wrong = {_STAGES.get(problem.name, "lake") for problem in problems(facts)}
    stages = [
        _kafka(facts, "kafka" in wrong),
        _job(facts, history, "job" in wrong),
        _lake(facts, history, "lake" in wrong),
        _consumers(facts, "consumers" in wrong),
    ]
    if facts.publishers:
        stages.append(_publishers(facts, "publishers" in wrong))
    return stages


def _look(is_wrong: bool, is_known: bool = True) -> tuple[str, str]:
    if is_wrong:
        return "bad", "look here"
    return ("good", "well") if is_known else ("off", "not known")


def _kafka(facts: Facts, is_wrong: bool) -> Stage:
    waiting = facts.records_waiting
    look, state = _look(is_wrong, waiting is not None)
    lag = "not known" if waiting is None else f"{counted(waiting, 'record')} to land"
    oldest = "" if waiting is None else "nothing waits"
    if waiting:
        oldest = "" if facts.lag_ms is None else f"the oldest waits {span(facts.lag_ms)}"
    return Stage("Kafka", "/", look, state, lag, oldest)


def _job(facts: Facts, history: History, is_wrong: bool) -> Stage:
    state = facts.lake
    look, words = _look(is_wrong, state.epoch_at is not None)
    lag = "no epoch yet"
    if state.epoch_at is not None:
        lag = f"epoch {state.epoch}, {ago(state.epoch_at, state.now_ms)}"

    epochs = sum(row["epochs"] for row in history.buckets)
    owner = state.owner if facts.drivers is None else facts.drivers.active
    return Stage(
        "Job", "/", look, words, lag, _rate(epochs, history, "epoch"), owner or "no active driver"
    )


def _lake(facts: Facts, history: History, is_wrong: bool) -> Stage:
    state = facts.lake
    look, words = _look(is_wrong)
    landed = sum(row["landed"] for row in history.buckets)
    dead = state.discarded + state.undeliverable
    return Stage(
        "Lake",
        "/transactions",
        look,
        words,
        f"{state.pending:,} pending",
        _rate(landed, history, "half landed", "halves landed"),
        f"{dead:,} dead, {state.delayed:,} delayed",
    )


def _consumers(facts: Facts, is_wrong: bool) -> Stage:
    unread = facts.lake.unread
    look, words = _look(is_wrong)
    messages = sum(row["messages"] for row in unread)
    oldest = [row["oldest_at"] for row in unread if row["oldest_at"] is not None]
    groups = len({row["consumer_group"] for row in unread})
    more = f"{counted(groups, 'group')} behind" if groups else "nobody is behind"
    dead = sum(row["dead"] for row in facts.lake.refused)
    if dead:
        more += f", {dead:,} dead"
    rate = f"the oldest {ago(min(oldest), facts.lake.now_ms)}" if oldest else ""
    return Stage(
        "Consumers", "/consumers", look, words, f"{counted(messages, 'message')} unread", rate, more
    )


def _publishers(facts: Facts, is_wrong: bool) -> Stage:
    rows = report.publisher_rows(facts)
    lags = [row["lag"] for row in rows]
    look, words = _look(is_wrong, None not in lags)

    lag = "not known"
    if None not in lags:
        lag = f"{counted(sum(lags), 'message')} to publish"
    oldest = [row["oldest_at"] for row in rows if row["oldest_at"] is not None]
    rate = f"the oldest {ago(min(oldest), facts.lake.now_ms)}" if oldest else ""

    active = sum(bool(row["active"]) for row in rows)
    more = f"{active} of {len(rows)} active"
    return Stage("Publishers", "/publishers", look, words, lag, rate, more)


def _rate(count: int, history: History, noun: str, plural: str = "") -> str:
    """Returns how many there were a second of the history's time, or a minute where it is few."""
    seconds = max(1.0, (history.until_at - history.from_at) / 1_000)
    a_second = count / seconds
    unit, value = ("second", a_second) if a_second >= 1 else ("minute", 60 * a_second)

    text = number_text(value)
    name = noun if text == "1" else plural or f"{noun}s"
    return f"{text} {name} a {unit}"


def _axis(history: History) -> tuple[str, str, str]:
    """Returns the axis of time: its begin, its middle, its end."""
    middle = (history.from_at + history.until_at) // 2
    return (clock(history.from_at, history), clock(middle, history), "now")


def _group_facts(facts: Facts) -> list[tuple[str, list[str]]]:
    """Returns the facts, each with all its lines of text."""
    grouped: list[tuple[str, list[str]]] = []
    for name, text in report.status_lines(facts):
        if name or not grouped:
            grouped.append((name, []))
        grouped[-1][1].append(text)
    return grouped
