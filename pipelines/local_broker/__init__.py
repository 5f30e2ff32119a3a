"""A real Kafka broker on loopback, for trying and testing."""
