"""A lake's invariants, checked from its tables alone: by DuckDB, without a JVM or `checker/`.

The rules are stated here a second time, set-based and over the whole history: what an epoch
decided is compared with what its tables say it had to decide. `run.verify` is the way in.
"""
