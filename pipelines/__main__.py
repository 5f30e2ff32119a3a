"""`python -m pipelines` is `txlake`."""

from pipelines.cli import main

main(prog_name="txlake")
