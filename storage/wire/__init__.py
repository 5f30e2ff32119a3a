"""From Kafka records to columns."""
