"""Take the broker away from a running job for some minutes: does the job go on by itself?

    python -m bench.broker_away --minutes 10

A real broker and the job, each a process of its own. The broker is killed (SIGKILL) while a
transaction waits for its end, and started again after the given time. Prints what the job said
meanwhile, what it used of the processor, and whether all messages are there.

Exit code: 0 when each message is there once and the job never ended; else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipelines.local_broker.broker import Broker
from pipelines.settings import Settings, parse
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.support.kafka_writer import KafkaWriter
from tests.support.processes import Process
from txlake.protocol import COMMIT

DEADLINE_S = 180.0


def messages(lake_path: Path) -> list[bytes]:
    """Return the bodies in the first topic's table."""
    lake = Lake(str(lake_path))
    if not lake.exists() or lake.read("catalog").num_rows == 0:
        return []
    return sorted(lake.read("topics/1", ["body"])["body"].to_pylist())


def wait_for(lake_path: Path, count: int) -> float:
    """Wait for so many messages. Output: how long it took, in seconds."""
    begin = time.monotonic()
    while len(messages(lake_path)) < count:
        if time.monotonic() - begin > DEADLINE_S:
            raise TimeoutError(f"{count} messages are not there after {DEADLINE_S:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - begin


def _processor_s(process: Process) -> float:
    """Return the processor time of a process group so far, in seconds."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == process.pid:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


def run(minutes: float, folder: Path) -> dict[str, Any]:
    """Take the broker away once. Output: what happened."""
    with Broker(folder / "broker") as broker:
        conf = folder / "job.toml"
        values: dict[str, dict[str, Any]] = {
            "lake": {"path": str(folder / "lake")},
            "kafka": {"bootstrap_servers": broker.bootstrap_servers, "queues": 2},
        }
        lines = []
        for section, keys in values.items():
            lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in keys.items())]
        conf.write_text("\n".join(lines))
        settings: Settings = parse(values, "away")
        job = Process("pipelines", ["run", "--conf", str(conf)], folder / "job.log", folder)
        try:
            return _away(minutes, folder, broker, job, KafkaWriter(settings))
        finally:
            job.end()


def _away(
    minutes: float, folder: Path, broker: Broker, job: Process, wire: KafkaWriter
) -> dict[str, Any]:
    lake = folder / "lake"
    while not job.has_said("running; owner"):
        if job.code is not None:
            raise RuntimeError(job.last_line())
        time.sleep(0.1)
    wire.end(COMMIT, wire.half("before", body=b"before"))
    wait_for(lake, 1)
    open_half = wire.half("open", body=b"open")
    broker.kill()
    used = _processor_s(job)
    time.sleep(minutes * 60)
    used = _processor_s(job) - used
    broker.restart()
    wire.end(COMMIT, open_half)
    wire.end(COMMIT, wire.half("after", body=b"after"))
    back_s = wait_for(lake, 3)
    said = [line for line in job.log.read_text().splitlines() if "Kafka at" in line]
    report = verify(Lake(str(lake)))
    return {
        "minutes_away": minutes,
        "seconds_until_all_was_delivered": round(back_s, 1),
        "cores_used_while_away": round(used / (minutes * 60), 3),
        "warnings": len(said),
        "first_warning": said[0] if said else None,
        "last_warning": said[-1] if said else None,
        "messages": [body.decode() for body in messages(lake)],
        "job_ended": job.code,
        "verify_findings": sum(bool(found.violations) for found in report.findings),
    }


def main() -> int:
    """Run and print. Output: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txlake-away-") as folder:
        found = run(options.minutes, Path(folder))
    print(json.dumps(found, indent=2))
    is_well = (
        found["messages"] == ["after", "before", "open"]
        and found["job_ended"] is None
        and found["verify_findings"] == 0
    )
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
