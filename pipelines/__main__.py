"""`python -m pipelines` is `txlake`."""

from pipelines.cli.main import start

start()
