"""What the notebooks call: every query and every figure of `notebooks/` is a function here.

`opened` reads a lake as SQL sees it, `tables`, `health` and `past` ask, `figures` draws. No Spark,
no JVM; nothing is written. Needs the extra `notebooks`, which the job does not.
"""
