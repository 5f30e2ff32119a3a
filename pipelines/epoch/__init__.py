"""One epoch, a file a step: land, plan, decide, apply, ask, commit. `run` shows them in order."""
