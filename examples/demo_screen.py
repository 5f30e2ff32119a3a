"""What the demo shows: a table that lives in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from examples.demo_agreement import CHECK_MAX, REMINDER_MS, Seen
from examples.demo_news import changes, counted, milestones

_LINE_INTERVAL_S = 1.0


def table_of(seen: Seen, title: str) -> Table:
    """Draw what was seen, in 80 columns: each row one claim, each column one place."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("transactions", min_width=21)
    for place, width in (("order db", 10), ("lake", 14), ("Kafka", 10), ("points db", 9)):
        table.add_column(place, justify="right", min_width=width)

    rolled_back = {*seen.refused, *seen.rolled_back}
    wrongly = len(rolled_back & {*seen.delivered, *seen.pointed})
    wrongly_published = len(rolled_back & set(seen.published))

    table.add_row(
        "orders committed",
        counted(len(seen.committed), "order"),
        counted(len(seen.delivered), "message"),
        counted(len(seen.published), "record"),
        counted(len(seen.pointed), "row"),
    )

    table.add_row("their points", str(seen.order_points), "", "", str(seen.balance_points))
    table.add_row(
        "refused: out of stock",
        f"{len(seen.refused)} refused",
        f"{len(seen.rolled_back)} rolled back",
        counted(wrongly_published, "record"),
        counted(wrongly, "row"),
    )

    table.add_row("killed before COMMIT", *_killed(seen))
    table.add_row(
        f"reminders, {REMINDER_MS // 1000} s later",
        counted(len(seen.to_remind), "order"),
        _reminded(seen),
        "",
        "",
    )

    for transaction_id in seen.forgotten:
        times = seen.checks.get(transaction_id, 0)
        table.add_row("always UNKNOWN", "", f"asked {times} of {CHECK_MAX}", "", "")
    table.add_row("given up after that", "", counted(len(seen.given_up), "message"), "", "")
    return table


def _killed(seen: Seen) -> tuple[str, str, str, str]:
    if not seen.killed:
        return "not yet", "", "", ""
    times = seen.checks.get(seen.killed, 0)
    return (
        counted(seen.committed.count(seen.killed), "order"),
        f"asked {times}×",
        counted(seen.published.count(seen.killed), "record"),
        counted(seen.pointed.count(seen.killed), "row"),
    )


def _reminded(seen: Seen) -> str:
    if not seen.reminded_after_ms:
        return counted(len(seen.reminded), "message")
    return f"{len(seen.reminded)} after {min(seen.reminded_after_ms.values()) / 1000:.1f} s"


class Screen:
    """Show news and what was seen, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()
        self._live: Live | None = None
        self._seen = Seen()
        self._lined = Seen()
        self._line_at = 0.0

    @property
    def seconds(self) -> float:
        """Tell the seconds since the start."""
        return time.monotonic() - self._started

    def __enter__(self) -> Screen:
        """Begin to show."""
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def tell(self, news: str) -> None:
        """Print news, above the live table."""
        text = f"[dim]{self.seconds:6.1f} s[/]  {escape(news)}"
        self.console.print(text, highlight=False, soft_wrap=self._live is None)

    def show(self, seen: Seen) -> None:
        """Show what was seen: all of it in a terminal, else what changed, now and then."""
        if self._live is not None:
            title = f"after {self.seconds:.0f} s"
            self._live.update(table_of(seen, title), refresh=True)
        elif self.seconds >= self._line_at and (line := changes(self._lined, seen)):
            self._lined = seen
            self._line_at = self.seconds + _LINE_INTERVAL_S
            self.tell(line)
        for news in milestones(self._seen, seen):
            self.tell(news)
        self._seen = seen

    def show_end(self, seen: Seen) -> None:
        """Print the final table."""
        self.console.print(table_of(seen, f"What stands there after {self.seconds:.0f} s"))
