"""What became of a transaction, and why: read from a lake, without Spark or Java.

`target` reads what the operator asks about, `find` fetches its rows. `units`, `waits`, `story` and
`report` are pure functions from rows to a report; `words` has the sentences, `show` prints them.
"""
