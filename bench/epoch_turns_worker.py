"""Run single epochs on request, for `bench.epoch_turns`: one line in, one line out.

This file is run with the packages of any checkout, so it uses only what all of them have. A request
is `<transactions> <body bytes> <unanswered>`; the answer is a JSON object: seconds and processor
time of the epoch, how many bytes it added to the lake, and how long each of its steps took.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.epoch_rig import timed_rig
from bench.sample_data import Mix
from bench.sizes import TINY
from bench.workbench import Workbench
from pipelines.jvm.session import start_session

# Once there were only random bodies.
_RANDOM: Any = {"body": "random"} if "body" in Mix.__dataclass_fields__ else {}


def main(bootstrap_servers: str, name: str) -> None:
    """Serve requests until the input ends."""
    with tempfile.TemporaryDirectory(prefix="txlake-turns-") as folder:
        broker: Any = SimpleNamespace(bootstrap_servers=bootstrap_servers)
        bench = Workbench(TINY, Path(folder), broker, lambda text: print(text, file=sys.stderr))
        session = start_session("bench")
        bench.own_spark = session
        rig = timed_rig(bench, name)
        lake = Path(rig.settings.lake.path)

        print("ready", flush=True)
        for line in sys.stdin:
            transactions, body_bytes, unanswered = line.split()
            mix = Mix(body_bytes=int(body_bytes), unanswered=float(unanswered), **_RANDOM)
            before = _bytes(lake)
            rig.writer.transactions(int(transactions), mix)
            rig.run()

            answer = {
                "seconds": rig.seconds[-1],
                "processor_s": rig.processor_s[-1],
                "bytes": _bytes(lake) - before,
                "step_ms": dict(rig.times()[-1].step_ms),
            }
            print(json.dumps(answer), flush=True)

        rig.close()
        session.stop()


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(*sys.argv[1:])
