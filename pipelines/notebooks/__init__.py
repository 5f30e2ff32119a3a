"""The functions that the notebooks call: every query and every figure of `notebooks/`.

`opened` reads a lake as SQL sees it; `tables`, `health` and `past` ask; `figures` draws. They work
without Spark and without a JVM, and write nothing. They need the extra `notebooks`.
"""
