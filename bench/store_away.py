"""Take the store away from a running job for some minutes: does the job go on by itself?

    python -m bench.store_away --minutes 2

A real broker, an S3 server of this machine behind a proxy, and the job, each a process of its own.
While the store is away each connection is refused, and messages are sent. Prints what the job said
meanwhile, what it used of the processor, and when all messages were there.

Exit code: 0 when each message is there once, the job never ended and `verify` finds nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.usage import own_processor_s
from pipelines.local_broker.broker import Broker
from pipelines.local_store.store import Store
from tests.support.fault_proxy import FaultProxy
from tests.support.job import settings_for
from tests.support.processes import Process
from tests.support.standby_processes import Drivers, drivers_of
from tests.support.store import make_bucket

_NAME = "away"
_SEND_S = 10.0  # between two messages


def run(minutes: float, folder: Path) -> dict[str, Any]:
    """Takes the store away once. Output: what happened."""
    with (
        Broker(folder / "broker") as broker,
        Store(folder / "store") as store,
        FaultProxy(store.port) as proxy,
    ):
        bucket = replace(make_bucket(store, _NAME), endpoint=proxy.endpoint)
        settings = settings_for(broker, folder, _NAME)
        lake = replace(settings.lake, path=f"{bucket.uri}/lake", store=bucket.options)
        section = bucket.settings_of(folder)
        with drivers_of(replace(settings, lake=lake), folder, section) as drivers:
            return _away(minutes * 60, proxy, drivers)


def _away(seconds: float, proxy: FaultProxy, drivers: Drivers) -> dict[str, Any]:
    job = drivers.start_active()
    drivers.send("before")
    drivers.wait_for_sent()
    used = own_processor_s(job.pid)
    with proxy.away():
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            drivers.send(f"away {len(drivers.sent)}")
            time.sleep(min(left, _SEND_S))
        used = own_processor_s(job.pid) - used
    back = time.monotonic()
    drivers.wait_for_sent()
    waited_s = time.monotonic() - back
    drivers.send("after")
    drivers.wait_for_sent()
    drivers.check()
    return {
        "seconds_away": seconds,
        "seconds_until_all_was_delivered": round(waited_s, 1),
        "cores_that_its_python_used_while_away": round(used / seconds, 3),
        "messages": len(drivers.sent),
        "job_ended": job.code,
        "said": _said(job),
    }


def _said(job: Process) -> list[str]:
    return [line for line in job.log.read_text().splitlines() if "the store of s3://" in line]


def main() -> int:
    """Runs and prints. Output: the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txlake-away-") as folder:
        try:
            found = run(options.minutes, Path(folder))
        except AssertionError as error:
            print(error)
            return 1
    print(json.dumps(found, indent=2))
    return 0 if found["job_ended"] is None else 1


if __name__ == "__main__":
    sys.exit(main())
