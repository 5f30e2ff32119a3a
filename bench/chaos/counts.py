"""How many of each kind of thing happened in a chaos run, and what did not, from the tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from bench.chaos.stories_unread import CASES
from storage.lake.epochs import PLANNED
from storage.lake.lake import Lake

_VARIED = (
    "late_end_policy",
    "check_interval_ms",
    "check_max",
    "check_rate_max",
    "half_retention_ms",
    "orphan_operation_ttl_ms",
    "transaction_timeout_ms",
    "auto_create_topics",
    "delay_levels_ms",
)
# What happens in any run, by where the report counts it; then what a long one has besides.
COMMON: Mapping[str, frozenset[str]] = {
    "outcomes": frozenset(
        {
            "COMMITTED operation",
            "COMMITTED check_answer",
            "COMMITTED operator",
            "COMMITTED late_end",
            "ROLLED_BACK operation",
            "ROLLED_BACK duplicate_in_set",
            "DISCARDED check_max",
        }
    ),
    "conflicts": frozenset(
        {
            "unreadable_operation",
            "unreadable_half",
            "wrong_producer_group",
            "wrong_transaction_id",
            "duplicate_end",
            "conflicting_end",
            "end_after_discard",
            "orphan_expired",
        }
    ),
    "deliveries": frozenset(
        {
            "half DELIVERED",
            "half UNDELIVERABLE",
            "half CANCELLED",
            "schedule DELIVERED",
        }
    ),
    "commands": frozenset(
        {
            "RESUME rearmed",
            "RESUME not_discarded",
            "RESUME resumed",
            "CANCEL cancelled",
            "CANCEL not_delayed",
            "CREATE_TOPIC created",
        }
    ),
    "sets": frozenset({"sets", "incomplete", "duplicates"}),
    "checks": frozenset({"acknowledged", "not_acknowledged"}),
    "operations": frozenset({"of_one_half", "of_several_halves", "unknown"}),
    "raw_promises": frozenset({"delivered", "withheld", "later", "unreadable", "orphan"}),
}
RARE: Mapping[str, frozenset[str]] = {
    "outcomes": frozenset(
        {
            "ROLLED_BACK check_answer",
            "ROLLED_BACK operator",
            "ROLLED_BACK late_end",
            "DISCARDED expired",
        }
    ),
    "conflicts": frozenset({"unknown_half"}),
    "deliveries": frozenset({"schedule CANCELLED"}),
    "commands": frozenset(
        {
            "RESEND resent",
            "RESEND not_pending",
            "RESUME still_undeliverable",
            "RESUME not_undeliverable",
            "RESUME bad_target",
            "CANCEL bad_target",
            "CREATE_TOPIC grown",
            "CREATE_TOPIC unchanged",
            "CREATE_TOPIC bad_target",
            "MAINTAIN accepted",
            "PING newer_version",
        }
    ),
    "checks": frozenset({"of_rearmed_halves"}),
    "unreadable": frozenset(f"{kind} {reason}" for kind, reason, _, _ in CASES),
}


def missing(
    figures: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, frozenset[str]]
) -> list[str]:
    """Returns what did not happen. Input: the report, and the kinds to look for."""
    return [
        f"{place}: {name}"
        for place, names in wanted.items()
        for name in sorted(names)
        if not figures[place].get(name)
    ]


def counts_of(lake: Lake) -> dict[str, Any]:
    """Returns counts by outcome and cause, conflict, delivery, command, error, setting."""
    halves = lake.read(
        "half", ["queue_id", "producer_group", "transaction_id", "tran_size", "error"]
    ).to_pylist()
    operations = lake.read("op", ["half_offsets", "decision", "error"]).to_pylist()
    checks = lake.read("checks", ["acknowledged", "arm"]).to_pylist()

    errors = Counter(f"half {row['error']}" for row in halves if row["error"])
    for kind in ("op", "schedule", "admin"):
        rows = lake.read(kind, ["error"])["error"].drop_null().to_pylist()
        errors.update(f"{kind} {error}" for error in rows)

    return {
        "outcomes": _counted(lake, "outcomes", "outcome", "cause"),
        "conflicts": _counted(lake, "conflicts", "reason"),
        "deliveries": _counted(lake, "deliveries", "source", "action"),
        "commands": _counted(lake, "admin", "command", "result"),
        "unreadable": dict(sorted(errors.items())),
        "checks": {
            "acknowledged": sum(row["acknowledged"] for row in checks),
            "not_acknowledged": sum(not row["acknowledged"] for row in checks),
            "of_rearmed_halves": sum(row["arm"] > 0 for row in checks),
        },
        "operations": {
            "of_one_half": sum(len(row["half_offsets"] or ()) == 1 for row in operations),
            "of_several_halves": sum(len(row["half_offsets"] or ()) > 1 for row in operations),
            "unknown": sum(row["decision"] == "UNKNOWN" for row in operations),
        },
        "sets": _sets(lake, halves),
        "schedule_records": lake.handle("schedule").to_pyarrow_dataset().count_rows(),
        "in_the_last_snapshot": {
            table: _in_last_snapshot(lake, table) for table in ("pending", "waiting")
        },
        **_epochs(lake),
    }


def _counted(lake: Lake, table: str, *columns: str) -> dict[str, int]:
    rows = lake.read(table, columns).to_pylist()
    found = Counter(" ".join(str(row[column]) for column in columns) for row in rows)
    return dict(sorted(found.items()))


def _sets(lake: Lake, halves: list[dict[str, Any]]) -> dict[str, int]:
    """Returns how many sets there are, and how many halves of theirs were duplicates."""
    sizes: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in halves:
        if not row["error"] and row["tran_size"] is not None:
            name = tuple(
                row[key] for key in ("queue_id", "producer_group", "transaction_id", "tran_size")
            )
            sizes[name] += 1

    causes = lake.read("outcomes", ["cause"])["cause"].to_pylist()
    return {
        "sets": len(sizes),
        "incomplete": sum(count < name[3] for name, count in sizes.items()),
        "duplicates": causes.count("duplicate_in_set"),
    }


def _in_last_snapshot(lake: Lake, table: str) -> int:
    epochs: list[int] = lake.read(table, ["epoch"])["epoch"].to_pylist()
    return epochs.count(max(epochs, default=0))


def _epochs(lake: Lake) -> dict[str, Any]:
    """Returns how many epochs each value of a setting was in force for, and the snapshots."""
    rows = lake.read("epochs", ["state", "owner", "parameters", "counts"]).to_pylist()
    in_force: dict[str, Counter[str]] = {name: Counter() for name in _VARIED}
    for row in rows:
        if row["state"] == PLANNED:
            for name, text in row["parameters"]:
                if name in in_force:
                    in_force[name][str(json.loads(text))] += 1

    committed = [dict(row["counts"]) for row in rows if row["state"] != PLANNED]

    return {
        "epochs": len(committed),
        "snapshots": sum("snapshot" in counts for counts in committed),
        "job_owners": len({row["owner"] for row in rows}),
        "epochs_by_setting": {name: dict(found) for name, found in in_force.items()},
    }
