"""What spark-submit runs: `spark-submit ... pipelines/submit.py --conf FILE` is `txlake run`."""

import sys

from pipelines.cli import main

if __name__ == "__main__":
    main(prog_name="txlake", args=["run", *sys.argv[1:]])
