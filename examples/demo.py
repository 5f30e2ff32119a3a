"""The demo: a real broker, the real job, two services, and what goes wrong in practice.

    make demo                                   or    .venv/bin/python -m examples.demo

What happens: 1. a Kafka broker and the job are started on a new lake, then a publisher; 2. an order
service answers UNKNOWN to everything; 3. another one creates orders, refusing those out of stock;
4. it is killed with kill -9 between its local commit and its COMMIT operation, and restarted; 5. a
points service consumes, and is killed too; 6. reminders of some orders are delivered late, and
never early; 7. at the end the databases, the lake and Kafka must agree, else the exit code is 1.

It deletes and makes anew `demo-lake/` and, beside it, `demo-lake-files/` (broker, logs, databases).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from rich.console import Console

from examples.demo_agreement import CHECK_MAX, REMINDER_MS, Seen, disagreements
from examples.demo_folders import Folders, short
from examples.demo_kafka import KafkaTopic
from examples.demo_news import changes
from examples.demo_programs import ROOT, DemoError, Program, Programs, Stop, StopError
from examples.demo_screen import Screen
from examples.demo_sources import FORGETFUL_GROUP, ORDER_GROUP, Sources
from examples.order_service import TOPIC
from pipelines.jvm.jars import JarError
from pipelines.jvm.java import JavaError
from pipelines.local_broker.broker import Broker, BrokerError
from txlake import protocol

_INTRODUCTION = """\
An order service stores orders in its own SQLite and publishes each as a
message: both or neither. The job keeps that promise, whatever happens; a points
service reads what it delivers, and a publisher writes it to Kafka, too. What
goes wrong here, on purpose: orders out of stock, a kill -9 between the local
commit and its COMMIT operation, a service that always answers UNKNOWN, a
consumer that is killed. It takes about a minute.
"""
_LOOK_S = 0.5  # between two looks: an epoch takes about a second here
KNOWN_ERRORS = (DemoError, StopError, BrokerError, JavaError, JarError)


class Demo:
    """Run the programs one after the other and look until all is quiet."""

    def __init__(
        self, folders: Folders, orders: int, patience_s: float, screen: Screen, stop: Stop
    ) -> None:
        self._stop = stop
        self._folders = folders
        self._orders = orders
        self._patience_s = patience_s
        self._screen = screen
        self._sources = Sources(folders.lake, folders.orders, folders.points)
        self._running: list[Program] = []
        self._bootstrap_servers = ""

    def run(self, broker: Broker, programs: Programs) -> None:
        """Let it all happen. Errors: DemoError."""
        self._bootstrap_servers = broker.bootstrap_servers
        self._folders.write_conf(broker.bootstrap_servers, CHECK_MAX)
        self._end_if_asked()
        self._tell(f"a Kafka broker answers at {broker.bootstrap_servers}; starting the job")

        self._begin(programs.start("job", "pipelines", "run", "--conf", str(self._folders.conf)))
        self._wait(lambda _: self._has_topics(), "the job's Kafka topics")
        self._tell("the job runs; starting a service that will always answer UNKNOWN")
        self._begin(self._order_service(programs, "forgetful service", "--forgetful"))

        # The first epoch takes seconds, in a JVM that is cold: not with the orders waiting for it.
        self._wait(lambda seen: bool(seen.forgotten), "the forgetful service's half in the lake")
        self._tell("its half is in the lake; starting a publisher and the two services")

        self._begin(
            programs.start("publisher", "pipelines", "publish", "--conf", str(self._folders.conf))
        )

        self._sources.kafka = KafkaTopic(broker.bootstrap_servers, TOPIC)

        doomed = self._order_service(
            programs,
            "order service",
            "--orders",
            str(self._orders),
            "--crash-after",
            str(max(self._orders // 4, 1)),
        )
        doomed_points = self._points_service(
            programs, "--crash-after", str(max(self._orders // 8, 1))
        )

        self._wait(lambda _: doomed.was_killed(), "the end of the order service by kill -9")
        self._restart_orders(programs)

        self._wait(lambda _: doomed_points.was_killed(), "the end of the points service by kill -9")
        self._tell("points service killed between its database and its offsets; restarting it")
        self._begin(self._points_service(programs))

        self._wait(lambda seen: seen.is_quiet(self._orders), "every order everywhere")
        self._tell("nothing is open any more; stopping everything")

    def look(self) -> Seen:
        """Look at the databases, the lake and Kafka."""
        return self._sources.look()

    def close(self) -> None:
        """Read no more from Kafka."""
        if self._sources.kafka is not None:
            self._sources.kafka.close()
            self._sources.kafka = None

    def _restart_orders(self, programs: Programs) -> None:
        killed = self._sources.killed = self._sources.newest_order()
        seen = self._sources.look()
        done = len(seen.committed) + len(seen.refused)
        self._tell(
            f"order service killed with kill -9 after {done} orders: {killed} is in its database, "
            "its COMMIT was never sent; restarting the service"
        )
        rest = str(self._orders - done)
        self._begin(self._order_service(programs, "order service", "--orders", rest))

    def _order_service(self, programs: Programs, name: str, *arguments: str) -> Program:
        is_forgetful = "--forgetful" in arguments
        group = FORGETFUL_GROUP if is_forgetful else ORDER_GROUP
        return programs.start(
            name,
            "examples.order_service",
            "--bootstrap-servers",
            self._bootstrap_servers,
            "--database",
            str(self._folders.orders),
            "--group",
            group,
            *(("--orders", "1") if is_forgetful else ()),
            *arguments,
        )

    def _points_service(self, programs: Programs, *arguments: str) -> Program:
        return programs.start(
            "points service",
            "examples.points_service",
            "--lake",
            str(self._folders.lake),
            "--database",
            str(self._folders.points),
            "--session-timeout-ms",
            "3000",
            *arguments,
        )

    def _has_topics(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})
        try:
            topics = set(admin.list_topics(timeout=5).topics)
        except KafkaException:  # a busy machine: the next look asks again
            return False
        return {protocol.HALF_TOPIC, protocol.OP_TOPIC} <= topics

    def _begin(self, program: Program) -> None:
        self._running.append(program)

    def _wait(self, is_done: Callable[[Seen], bool], what: str) -> None:
        """Look, show and ask again until it is done.

        Errors: DemoError when nothing new was seen for as long as its patience lasts: a busy
        machine may take its time.
        """
        before = None
        news_at = time.monotonic()
        while True:
            self._end_if_asked()
            for program in self._running:
                program.check_runs()

            seen = self._sources.look()
            self._screen.show(seen)
            if is_done(seen):
                return

            if seen != before:
                before = seen
                news_at = time.monotonic()

            if time.monotonic() >= news_at + self._patience_s:
                raise DemoError(
                    f"waited for {what} in vain, {self._patience_s:.0f} s without news; seen last: "
                    f"{changes(Seen(), seen) or 'nothing'}"
                )

            time.sleep(_LOOK_S)

    def _end_if_asked(self) -> None:
        if self._stop.number:
            self._tell(f"{self._stop.name}: stopping everything")
        self._stop.check()

    def _tell(self, news: str) -> None:
        self._screen.tell(news)


def run_demo(
    folders: Folders, orders: int, patience_s: float, screen: Screen, stop: Stop
) -> tuple[Seen, int]:
    """Run the demo whole. Output: what stands there at the end, and the broker's port."""
    told = "deleted and made anew" if folders.make_anew() else "made"
    screen.tell(f"{short(folders.lake)} and {folders.beside.name} {told}; starting a Kafka broker")
    demo = Demo(folders, orders, patience_s, screen, stop)

    with ExitStack() as stack:
        temp = stack.enter_context(tempfile.TemporaryDirectory(prefix="txlake-demo-"))
        broker = stack.enter_context(Broker(folders.kafka))
        programs = stack.enter_context(Programs(folders.beside, Path(temp)))
        stack.enter_context(screen)
        stack.callback(demo.close)
        demo.run(broker, programs)
        published = demo.look().published

    # All programs have ended: what is seen now stays.
    return replace(demo.look(), published=published), broker.port


def show_end(seen: Seen, screen: Screen, folders: Folders, port: int) -> int:
    """Print the final table, the verdict and what to try next. Output: the exit code."""
    console = screen.console
    screen.show_end(seen)

    if told := disagreements(seen):
        console.print(f"[bold red]Not agreed, {len(told)} times:[/]", highlight=False)
        for sentence in told:
            console.print(f"  {sentence}", markup=False, highlight=False, soft_wrap=True)
        _tell_logs(console, folders)
        return 1

    console.print(
        f"[bold green]Agreed:[/] {len(seen.committed)} orders in SQLite = {len(seen.delivered)} "
        f"messages in the topic table = {len(seen.published)} records in Kafka = "
        f"{len(seen.pointed)} points rows, each transaction once; "
        f"{len(seen.refused)} refused = {len(seen.rolled_back)} rolled back; killed: 1 delivered; "
        f"{len(seen.reminded)} reminders, none before {REMINDER_MS // 1000} s; "
        f"always UNKNOWN: {len(seen.given_up)} given up after {CHECK_MAX} checks.",
        highlight=False,
        soft_wrap=True,
    )

    console.print("\n[bold]What to try next[/] (the lake stays until the next demo)\n")
    told_of = [seen.killed, *seen.reminded[:1], *seen.given_up]
    for what, commands in folders.next_steps(port, told_of):
        console.print(what, markup=False, highlight=False)
        for command in commands:
            console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)

    return 0


def _tell_logs(console: Console, folders: Folders) -> None:
    if folders.beside.exists():
        console.print(f"The logs are in {folders.beside}", markup=False, highlight=False)


@click.command()
@click.option(
    "--lake",
    type=click.Path(file_okay=False, path_type=Path),
    default=ROOT / "demo-lake",
    help="The lake's folder: deleted and made anew, with <lake>-files beside it.",
)
@click.option("--orders", type=click.IntRange(min=40), default=120, show_default=True)
@click.option(
    "--patience-s",
    type=float,
    default=180.0,
    show_default=True,
    help="It fails after so long without news.",
)
def main(lake: Path, orders: int, patience_s: float) -> None:
    """Show transactional messages: a real broker, the job, an order and a points service."""
    console = Console()
    screen = Screen(console)
    folders = Folders(lake.absolute())
    stop = Stop()
    console.print(_INTRODUCTION, highlight=False, soft_wrap=True)

    try:
        seen, port = run_demo(folders, orders, patience_s, screen, stop)
    except KNOWN_ERRORS as error:
        # Ctrl-C in a terminal may reach a short-lived helper first, and make that fail.
        if stop.number:
            console.print(f"Interrupted by {stop.name}: all that was started has been stopped.")
            sys.exit(128 + stop.number)
        console.print("[bold red]The demo failed:[/]", highlight=False)
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        _tell_logs(console, folders)
        sys.exit(1)
    sys.exit(show_end(seen, screen, folders, port))


if __name__ == "__main__":
    main()
