"""A lake's invariants, checked from its tables alone: by DuckDB, without a JVM or `checker/`.

The rules are stated here a second time, set-based and over the whole history: each decision of an
epoch is compared with the one that follows from the tables. `run.verify` is the entry point.
"""
