"""Store: what the tables are, how Kafka records become rows, and how rows become commits."""
