"""The end of a transaction and its reasons: read from a lake, without Spark or Java.

`target` parses the operator's target, `fetch` reads its rows. `units`, `reasons`, `timeline` and
`report` are pure functions from rows to a report; `rule_texts` has the sentences, `show` prints
them.
"""
