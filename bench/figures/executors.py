"""What it costs to spread an epoch: two executors of one core each, over one, on a real cluster.

Two processors of a rented machine are often one core's two threads: what runs on both at once takes
more processor time than one after the other, up to 1.3 times here. That says nothing of the job, so
processor time is compared with the whole cluster and its drivers on one processor. There they take
longer turns than usual (SCHED_BATCH): executors on two machines do not push each other out of a
processor's cache.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.epoch_turns import HERE, Worker
from bench.figure import Figure, Plot
from bench.usage import processor_s
from bench.workbench import Workbench
from pipelines.jvm.cluster import cluster_conf
from tests.support.cluster import Cluster

# Unanswered halves are none: when they are checked is a matter of time, not of the epoch.
_BODY_BYTES, _UNANSWERED = 256, 0.0
# Each executor's JVM compiles for itself, and two of them have half of an epoch's records each.
_WARM_UP_ROUNDS, _WARM_UP_TIMES = 20, 4
_ROUNDS_TIMES = 3  # single rounds differ by a tenth
# Two executors, the driver, the broker: with fewer, wall time would say only that they share.
_CORES_WANTED = 4
_Samples = dict[str, list[dict[str, Any]]]


def measure(bench: Workbench) -> list[Figure]:
    """Measure processor time on one processor; wall time on all, where there are enough."""
    parameters = {"transactions": bench.size.executors_transactions, "body_bytes": _BODY_BYTES,
                  "rounds": _rounds(bench)}  # fmt: skip
    with _one_processor():
        samples = _samples(bench, "one-processor")
    found = [_figure("two executors, processor",
                     "processor time of driver and executors, all on one processor", samples,
                     "processor_s", parameters)]  # fmt: skip
    if len(os.sched_getaffinity(0)) >= _CORES_WANTED:
        found.append(_figure("two executors, time", "wall time", _samples(bench, "all"), "seconds",
                             parameters))  # fmt: skip
    return found


def _rounds(bench: Workbench) -> int:
    return _ROUNDS_TIMES * bench.size.epoch_rounds


@contextmanager
def _one_processor() -> Iterator[None]:
    """Lets all processes that are started meanwhile run on one processor."""
    processors, policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    os.sched_setaffinity(0, {min(processors)})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, os.sched_param(0))
        os.sched_setaffinity(0, processors)


def _samples(bench: Workbench, where: str) -> _Samples:
    """Take turns between a driver with one executor and one with two; the input is the same."""
    size, samples = bench.size, _Samples()
    with ExitStack() as running:
        bench.say("starting a cluster, a driver with one of its executors, and one with two")
        cluster = running.enter_context(Cluster(bench.folder / f"cluster-{where}", cores=2))
        workers: dict[str, Worker] = {}
        for name, count in (("one", 1), ("two", 2)):
            spark, lake = _spark(cluster, count), f"executors-{where}-{name}"
            workers[name] = Worker(HERE, bench.broker.bootstrap_servers, lake, spark)
            running.callback(workers[name].close)
            samples[name] = []
        warm_up = min(_WARM_UP_ROUNDS, _WARM_UP_TIMES * size.epoch_rounds)
        for number in range(warm_up + _rounds(bench)):
            for name, worker in workers.items():
                sample = _epoch(worker, cluster, size.executors_transactions)
                if number >= warm_up:
                    samples[name].append(sample)
    return samples


def _epoch(worker: Worker, cluster: Cluster, transactions: int) -> dict[str, Any]:
    """Run an epoch. Output: as the worker's; the executors' processor time is added."""
    before = _executors_s(cluster)
    sample = worker.run(transactions, _BODY_BYTES, _UNANSWERED)
    driver_s = sample["processor_s"]
    used = driver_s + _executors_s(cluster) - before
    return {**sample, "driver_s": driver_s, "processor_s": used}


def _executors_s(cluster: Cluster) -> float:
    """Return the processor time of all executors; those of one driver work at a time."""
    # An executor is in the group of Spark's worker; the Python workers are its descendants.
    groups = {os.getpgid(executor.pid) for executor in cluster.executors()}
    return sum(processor_s(group) for group in groups)


def _spark(cluster: Cluster, executors: int) -> dict[str, str]:
    return {
        "spark.master": cluster.master,
        **cluster_conf(cluster.master),
        "spark.executor.cores": "1",
        "spark.cores.max": str(executors),
        "spark.executor.memory": "800m",
    }


def _figure(
    name: str, what: str, samples: _Samples, key: str, parameters: dict[str, Any]
) -> Figure:
    found = {side: [sample[key] for sample in of_side] for side, of_side in samples.items()}
    ratios = [two / one for one, two in zip(found["one"], found["two"], strict=True)]
    return Figure(
        name=name,
        value=statistics.median(ratios),
        unit="ratio",
        how=f"{what}; an epoch on two executors of one core / on one, on a standalone cluster of "
        "this machine; in turn, the median of the rounds",
        better="less",
        must=1.15,
        aim=1.05,
        samples=[round(ratio, 3) for ratio in ratios],
        details={
            side: {
                "median_s": round(statistics.median(s["seconds"] for s in of_side), 3),
                "median_processor_s": round(
                    statistics.median(s["processor_s"] for s in of_side), 3),
                "of_it_the_driver_s": round(statistics.median(s["driver_s"] for s in of_side), 3),
                "step_ms": of_side[-1]["step_ms"],
            }
            for side, of_side in samples.items()
        },
        parameters=parameters,
        plots=[Plot(f"{name}: epochs in turn", "round", "s",
                    {side: list(enumerate(values)) for side, values in found.items()},
                    kind="dots")],
    )  # fmt: skip
