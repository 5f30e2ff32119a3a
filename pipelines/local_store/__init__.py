"""A real S3 server on loopback, for trying and testing."""
