"""How long an epoch takes with two executors, and with one: a standalone cluster, in turns.

    python -m bench.executors [--rounds 3] [--transactions 100000] [--body-bytes 2048]

A real master and two workers of one core each run on this machine. The transactions of some epochs
wait in Kafka; the job is submitted with one executor, then with two, each time on a new lake. The
first epochs of a turn, in which JVMs compile, do not count. Driver, broker and executors share the
machine: on two cores the driver's own steps come out of the same two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from bench.epoch_times import cadence_s, epoch_times, median_steps_ms
from bench.job_process import JobProcess
from bench.sample_data import Mix, Written
from bench.sizes import SMALL
from bench.workbench import Workbench
from pipelines.local_broker.broker import Broker
from tests.support.cluster import Cluster

_EPOCHS = 5
_COLD_EPOCHS = 2
_TIMEOUT_S = 1_800.0


def turn(
    bench: Workbench,
    cluster: Cluster,
    topics: str,
    written: Written,
    epoch_records: int,
    cores: int,
) -> tuple[float, dict[str, float]]:
    """Drain what waits with so many executors of one core.

    Output: the median time from commit to commit, s, and of each step, ms.
    """
    name = bench.new_name(f"executors-{cores}")
    stream = {"max_offsets_per_trigger": epoch_records, "deliveries": "executors"}
    submitted = (
        *("spark-submit", "--master", cluster.master),
        *("--submit-options", f"--executor-memory 900m --total-executor-cores {cores}"),
    )
    prepared = bench.job(name, topics, stream=stream)
    job = JobProcess(prepared.settings, prepared.conf, bench.folder / "temp", arguments=submitted)

    with job:
        job.wait_until_landed(written.records, _TIMEOUT_S)

    times = [time for time in epoch_times(job.lake) if time.records > epoch_records // 2]
    bench.forget(job.lake)
    warm = times[_COLD_EPOCHS - 1 :]
    return statistics.median(cadence_s(warm)), median_steps_ms(warm[1:])


def main() -> None:
    """Measure, and print a line a turn, then the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transactions", type=int, default=100_000, help="of an epoch")
    parser.add_argument("--body-bytes", type=int, default=2_048)
    asked = parser.parse_args()
    ratios = []

    with tempfile.TemporaryDirectory(prefix="bench-executors-") as name:
        folder = Path(name)
        with Broker(folder / "broker") as broker, Cluster(folder / "cluster") as cluster:
            bench = Workbench(SMALL, folder, broker, lambda text: print(text, flush=True))
            mix = Mix(body_bytes=asked.body_bytes)
            topics, written = bench.waiting(_EPOCHS * asked.transactions, mix)
            epoch_records = -(-written.records // _EPOCHS)

            for number in range(1, asked.rounds + 1):
                seconds = {}
                for cores in (1, 2):
                    took, steps = turn(bench, cluster, topics, written, epoch_records, cores)
                    seconds[cores] = took
                    bench.say(f"round {number}, executors {cores}: {took:.2f} s an epoch, {steps}")
                ratios.append(seconds[2] / seconds[1])

    print("two executors / one:", ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
