"""Run the job with a sampler beside it: what `python -m bench --profile FOLDER` starts.

    python -m bench.profiled_job --into FOLDER --conf job.toml

At its end FOLDER has the driver's stacks (`bench/sampler.py`), and, from Spark's event log,
`spark.txt`: what each of its jobs cost.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from bench.event_log import summarize
from bench.sampler import Sampler
from pipelines.cli.main import run_job
from pipelines.settings import load


def main() -> None:
    """Run until SIGTERM, then write what was seen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--conf", required=True)
    options = parser.parse_args()

    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("py4j").setLevel(logging.ERROR)

    with Sampler(options.into):
        run_job(load(options.conf))

    logs = [path for path in (options.into / "spark-events").rglob("*") if path.is_file()]
    (options.into / "spark.txt").write_text(summarize(logs), "utf-8")


if __name__ == "__main__":
    main()
