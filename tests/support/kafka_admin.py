"""Kafka's admin client, as tests use it."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient


def admin_client(bootstrap_servers: str) -> AdminClient:
    """Return an admin client that logs nothing.

    It can outlive its broker, and would say so each second in the stderr of the tests after it.
    """
    return AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
