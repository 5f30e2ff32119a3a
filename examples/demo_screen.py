"""What the demo shows: a table that lives in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from examples.demo_agreement import CHECK_MAX, Seen

_LINE_INTERVAL_S = 1.0


def table_of(seen: Seen, title: str) -> Table:
    """Draw what was seen: each row one claim, each column one place."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("transactions", min_width=26)
    for place, width in (("order db", 11), ("lake", 20), ("points db", 9)):
        table.add_column(place, justify="right", min_width=width)
    wrongly = len({*seen.refused, *seen.rolled_back} & {*seen.delivered, *seen.pointed})
    table.add_row(
        "orders committed", f"{len(seen.committed)} orders", f"{len(seen.delivered)} messages",
        f"{len(seen.pointed)} rows",
    )  # fmt: skip
    table.add_row("their points", str(seen.order_points), "", str(seen.balance_points))
    table.add_row(
        "refused: out of stock", f"{len(seen.refused)} refused",
        f"{len(seen.rolled_back)} rolled back", f"{wrongly} rows",
    )  # fmt: skip
    table.add_row("killed before its COMMIT", *_killed(seen))
    for transaction_id in seen.forgotten:
        times = seen.checks.get(transaction_id, 0)
        table.add_row("always UNKNOWN", "", f"asked {times} of {CHECK_MAX} times", "")
    table.add_row("TRANS_CHECK_MAX_TIME_TOPIC", "", f"{len(seen.given_up)} messages", "")
    return table


def _killed(seen: Seen) -> tuple[str, str, str]:
    if not seen.killed:
        return "not yet", "", ""
    told = f"asked {seen.checks.get(seen.killed, 0)} times"
    if seen.killed in seen.delivered:
        told = f"{told.removesuffix(' times')}×, delivered"
    return (
        "1 order" if seen.killed in seen.committed else "no order",
        told,
        f"{seen.pointed.count(seen.killed)} rows",
    )


def line_of(seen: Seen) -> str:
    """Say in one line what was seen."""
    asked = sum(seen.checks.get(one, 0) for one in seen.forgotten)
    return (
        f"{len(seen.committed)} orders committed, {len(seen.delivered)} delivered, "
        f"{len(seen.pointed)} with points; {len(seen.refused)} refused, "
        f"{len(seen.rolled_back)} rolled back; killed one asked "
        f"{seen.checks.get(seen.killed, 0)} times; forgotten one asked {asked} of {CHECK_MAX}"
    )


class Screen:
    """Show news and what was seen, with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()
        self._live: Live | None = None
        self._line = ""
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
        """Show what was seen: at once in a terminal, else when it changed, now and then."""
        if self._live is not None:
            title = f"after {self.seconds:.0f} s"
            self._live.update(table_of(seen, title), refresh=True)
        elif (line := line_of(seen)) != self._line and self.seconds >= self._line_at:
            self._line, self._line_at = line, self.seconds + _LINE_INTERVAL_S
            self.tell(line)

    def show_end(self, seen: Seen) -> None:
        """Print the final table."""
        self.console.print(table_of(seen, f"What stands there after {self.seconds:.0f} s"))
