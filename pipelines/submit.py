"""The program that spark-submit runs.

`spark-submit ... pipelines/submit.py --conf FILE` is `txlake run --conf FILE`; with `replay` or
`backfill` first it is that command.
"""

import sys

from pipelines.cli.main import main

if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_named = arguments[:1] in (["run"], ["replay"], ["backfill"])
    main(prog_name="txlake", args=arguments if is_named else ["run", *arguments])
