"""The decision: which operation ends a half, what is asked, discarded and delivered, and where.

Pure functions from frames (Arrow tables) to frames. They read no clock, no table, no setting and
no network: T, C(q), the parameters and every frame are handed in. Relational steps are SQL text,
run by DuckDB inside the process; DECISIONS.md 1 has the measurements that led here.
"""
