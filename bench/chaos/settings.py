"""The job's settings of each start: what decides differs from one start to the next, by the seed.

A value is dealt as from a pack of cards: so many starts as a pack has values see each value once,
in an order that the seed draws. So every snapshot interval occurs in any run. The two policies for
late ends take turns: an end that one start turned down meets the other policy at the next.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from typing import Any, Final

from bench.chaos.names import (
    KAFKA_QUEUES,
    PUBLISHED_PREFIX,
    PUBLISHER,
    TOPIC_QUEUES,
    TOPICS_MAX,
)
from tests.support.processes import ROOT

PUBLISHER_TIMEOUT_MS: Final = 5_000
CHECK_MAX: Final = 8  # the largest that is dealt
MESSAGE_BYTES_MAX: Final = 16_384
# What the raw producer builds on: no orphan expires, and no half is too old, before this.
ORPHAN_TTL_MS_MIN: Final = 1_000
RETENTION_MS_MIN: Final = 60_000

_PACKS: Mapping[str, tuple[Any, ...]] = {
    "lake.pending_snapshot_epochs": (1, 2, 7, 100, 500, 500),
    "transaction.transaction_timeout_ms": (1_000, 1_500),
    "transaction.check_interval_ms": (300, 600, 1_000),
    "transaction.check_max": (3, 5, CHECK_MAX),
    "transaction.check_rate_max": (5, 20, 50_000),
    "transaction.half_retention_ms": (RETENTION_MS_MIN, 259_200_000),
    "transaction.orphan_operation_ttl_ms": (ORPHAN_TTL_MS_MIN, 5_000, 3_600_000),
    "topics.auto_create_topics": (True, True, False),
    "delay.levels": ("1s", "1s 4s", "2s 3s 8s"),
}
_POLICIES = ("apply", "reject")
# The last start of a run does not hold up its end, and sees the orphans off.
_LAST: Mapping[str, Any] = {
    "transaction.check_rate_max": 50_000,
    "transaction.orphan_operation_ttl_ms": ORPHAN_TTL_MS_MIN,
}
_FIXED: Mapping[str, Any] = {
    "kafka.queues": KAFKA_QUEUES,
    "transaction.ask_timeout_ms": 2_000,
    "transaction.message_bytes_max": MESSAGE_BYTES_MAX,
    "topics.default_queue_count": TOPIC_QUEUES,
    "topics.topics_max": TOPICS_MAX,
    "stream.trigger_interval_ms": 200,
    "maintenance.merge_files": 4,
    "maintenance.checkpoint_commits": 4,
    "maintenance.log_retention_ms": 60_000,
    "maintenance.file_retention_ms": 60_000,
}


# Transactions of few messages, so that epochs are cut, and open ones of the dead end soon.
PUBLISHING: Final[Mapping[str, Any]] = {
    f"publish.{PUBLISHER}.destination": f"{PUBLISHED_PREFIX}{{topic}}",
    f"publish.{PUBLISHER}.transaction_messages_max": 20,
    f"publish.{PUBLISHER}.transaction_timeout_ms": PUBLISHER_TIMEOUT_MS,
}


def dealt(seed: int, start: int, is_last: bool = False) -> dict[str, Any]:
    """Returns the settings that differ between starts. Input: `start` counts from 1."""
    values = {}
    for key, pack in _PACKS.items():
        round_, place = divmod(start - 1, len(pack))
        order = random.Random(f"{seed}/{key}/{round_}").sample(pack, len(pack))
        values[key] = order[place]
    first = random.Random(f"{seed}/policy").randrange(2)
    values["transaction.late_end_policy"] = _POLICIES[(first + start) % 2]
    return {**values, **_LAST} if is_last else values


def of_cluster(master: str) -> dict[str, str]:
    """Returns Spark's settings for a job on a standalone cluster of this machine."""
    return {
        "spark.master": master,
        "spark.executor.memory": "600m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
    }


def settings_text(
    dealt_values: Mapping[str, Any],
    lake: Mapping[str, Any],
    bootstrap_servers: str,
    spark: Mapping[str, str] | None = None,
) -> str:
    """Returns the settings file of one start of the job, with the values dealt to it.

    Input: `lake`: the section of this name, perhaps with a `store` in it.
    """
    values = {
        "lake.path": lake["path"],
        **{f"lake.store.{key}": value for key, value in lake.get("store", {}).items()},
        "kafka.bootstrap_servers": bootstrap_servers,
        **_FIXED,
        **dealt_values,
    }

    sections: dict[str, list[str]] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        # A JSON text, number, true or false is one of TOML.
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")

    if spark:
        sections["stream"].append('deliveries = "executors"')
        sections["spark"] = [f"{json.dumps(key)} = {json.dumps(at)}" for key, at in spark.items()]

    return "\n".join(
        f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items()
    )
