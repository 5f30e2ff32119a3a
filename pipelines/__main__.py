"""`python -m pipelines` is `txlake`."""

from pipelines.cli.main import main

main(prog_name="txlake")
