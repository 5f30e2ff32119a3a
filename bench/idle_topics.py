"""What topics cost an epoch that does not touch them.

    python -m bench.idle_topics --rounds 3

Lakes with 1, 10 and 1,000 topics of four queues, each queue with a message. Then epochs of ten
transactions of one topic, on each lake in turns, in one process; a round is as many as lie between
two rows of `epochs` that name all topics, so each round has one such row. Epochs, Delta tables and
maintenance are the real ones; Kafka is in memory, and what Spark's tasks do is called directly.

Prints JSON: of each lake the medians over the rounds of an epoch's processor time, its time, that
of the maintenance behind it, and the bytes of its two rows of `epochs`. Then the ratios that are
asked for, with 1,000 topics: bytes over those with one (at most 1.5), processor time over that with
ten (at most 1.2); each is the median of the rounds' ratios.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import click

from bench.soak.kafka import MemoryAsker, MemoryKafka
from bench.soak.memory_job import MemoryJob, Spent
from bench.soak.traffic import SHOP, Sent, World
from pipelines.settings import Settings, parse
from txlake import protocol as p

TOPICS = (1, 10, 1_000)
QUEUES = 4
_TRANSACTIONS = 10
_NAMED_EPOCHS = 100  # the default


def settings_of(lake: Path, topics: int) -> Settings:
    """Returns settings as they are by default, but for the most topics."""
    return parse(
        {
            "lake": {"path": str(lake), "pending_snapshot_epochs": _NAMED_EPOCHS},
            "kafka": {"bootstrap_servers": "none:1"},
            "topics": {"topics_max": topics + 10, "group_topics_max": topics + 10},
        },
        "many topics",
    )


@dataclass(frozen=True)
class Round:
    """The means of one round's epochs. Units: ms, bytes."""

    processor_ms: float
    epoch_ms: float
    upkeep_ms: float
    row_bytes: float


class ManyTopics(MemoryJob):
    """A job whose lake has so many topics; its traffic is of the first of them."""

    def __init__(self, folder: Path, topics: int) -> None:
        settings, kafka = settings_of(folder, topics), MemoryKafka()
        super().__init__(
            settings, settings.maintenance_limits(), kafka, MemoryAsker((SHOP,), lambda _: None)
        )
        self._world = World(kafka, random.Random(1), 1)
        self._row_bytes = 0
        for number in range(topics):
            self._world.command(p.CREATE_TOPIC, f"topic:{_topic(number)}:{QUEUES}")
        self._run()
        for number in range(topics):
            self._send([(_topic(number), queue) for queue in range(QUEUES)])
        self._run()
        while self.last.epoch % _NAMED_EPOCHS:
            self._run_one()

    def _send(self, places: list[tuple[str, int]]) -> None:
        self.kafka.now_ms = self.now_ms
        halves: dict[int, list[Sent]] = {}
        for topic, queue in places:
            half = self._world.half(topic=topic, extra={p.REAL_QID: str(queue)})
            halves.setdefault(half.queue, []).append(half)
        for named in halves.values():
            self._world.end(p.COMMIT, *named)

    def _run(self) -> Spent:
        before = {path.name for path in self._epochs_files()}
        spent = self.epoch()
        assert spent is not None, "nothing was sent"
        self._row_bytes += sum(
            path.stat().st_size for path in self._epochs_files() if path.name not in before
        )
        return spent

    def _epochs_files(self) -> list[Path]:
        return [path for path in Path(self.lake.path, "epochs").glob("*.parquet")
                if not path.name.startswith(("merged-", "closed-"))]  # fmt: skip

    def _run_one(self) -> Spent:
        self._send([(_topic(0), number % QUEUES) for number in range(_TRANSACTIONS)])
        return self._run()

    def round(self) -> Round:
        """Runs a round of epochs of one topic."""
        self._row_bytes = 0
        spent = [self._run_one() for _ in range(_NAMED_EPOCHS)]
        return Round(
            1e3 * statistics.fmean(one.epoch_processor_s for one in spent),
            1e3 * statistics.fmean(one.epoch_s for one in spent),
            1e3 * statistics.fmean(one.upkeep_s for one in spent),
            self._row_bytes / _NAMED_EPOCHS,
        )


def _topic(number: int) -> str:
    return f"topic{number}"


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True)
def main(rounds: int) -> None:
    """Measures, and prints the result as JSON."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txlake-topics-")))
        jobs = {
            count: stack.enter_context(closing(ManyTopics(folder / f"lake-{count}", count)))
            for count in TOPICS
        }
        found: dict[int, list[Round]] = {count: [] for count in TOPICS}
        for _ in range(rounds):
            for count, job in jobs.items():
                found[count].append(job.round())
    one, ten, many = (found[count] for count in TOPICS)
    answer = {
        "lakes": {
            count: {
                measure: round(statistics.median(getattr(one, measure) for one in of_lake), 1)
                for measure in Round.__dataclass_fields__
            }
            for count, of_lake in found.items()
        },
        "row_bytes_of_one": _ratio(many, one, "row_bytes"),
        "processor_of_ten": _ratio(many, ten, "processor_ms"),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(answer, indent=2))


def _ratio(many: list[Round], few: list[Round], measure: str) -> float:
    pairs = zip(many, few, strict=True)
    ratios = [float(getattr(a, measure) / getattr(b, measure)) for a, b in pairs]
    return round(statistics.median(ratios), 3)


if __name__ == "__main__":
    main()
