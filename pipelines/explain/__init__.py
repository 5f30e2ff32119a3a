"""What became of a transaction, and why: read a lake, tell the story. No Spark, no JVM.

`target` reads what the operator asks about, `rows` fetches it, `units`, `waits` and `story` are
pure functions from rows to a story, `words` has the sentences, `show` prints.
"""
