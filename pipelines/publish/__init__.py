"""Committed messages written to Kafka, too, each exactly once for `read_committed` consumers."""
