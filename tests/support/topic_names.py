"""Names of a job's topics on a broker that tests share."""

from __future__ import annotations


def topics_named(name: str) -> dict[str, str]:
    """Return names of a job's own topics: tests that share a broker must not meet."""
    return {
        "half_topic": f"{name}-half",
        "op_topic": f"{name}-op",
        "schedule_topic": f"{name}-schedule",
        "admin_topic": f"{name}-admin",
        "check_topic_prefix": f"{name}-check-",
    }
