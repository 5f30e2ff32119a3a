"""One epoch, in the steps of `runner.py`: land, plan, decide, write, check, commit."""
