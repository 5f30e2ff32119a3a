"""The decision: which operation ends a half, what is asked, discarded and delivered, and where.

Pure functions from frames (Arrow tables) to frames. They read no clock, no table, no setting and no
network: `epoch_at`, `known_at`, the parameters and every frame are handed in. DuckDB runs the
relational steps, SQL texts, inside the process; DECISIONS.md 1 has the measurements.
"""
