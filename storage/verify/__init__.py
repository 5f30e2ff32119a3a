"""Check a lake's invariants from its tables alone: DuckDB, no JVM, nothing of `checker/`.

The rules are stated here a second time, set-based and over the whole history: what an epoch
decided is compared with what its tables say it had to decide. `run.verify` is the way in.
"""
