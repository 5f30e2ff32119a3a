"""Random histories: what lands in which epoch, at which T and C. Seeded; no clock is read.

A world is a dict: `parameters`, and `epochs`, each with `at` and the rows it lands, in the columns
of `checker.frames`. Every half queue of a world has a history of its own; what they share are the
check rate, the topics and the operator's commands. Instants stand on a lattice of seconds, so that
the boundaries of the rules are hit often.
"""

from __future__ import annotations

import random
import re
from typing import Any

from tests.support.history import OF_TODAY
from tests.support.log_splits import cut

Row = dict[str, Any]
SECOND_MS = 1_000
START_AT = 1_000_000_000
GROUPS = ("g0", "g1", "g2")
SIGNING = "g2"  # the group that has a key
SET_IDS = ("s0", "s1")
TOPICS = ("r0", "r1", "r2", "r3", "r4")


def random_world(
    seed: int,
    queue_count: int,
    *,
    checks: bool = True,
    early: bool = True,
    epoch_count: int | None = None,
    floors: bool = False,
) -> Row:
    """Make a world; with `floors` the floors of its queues rise from epoch to epoch.

    Without `checks` C is never known and no operator commands; without `early` no operation lands
    before what it names.
    """
    chance = random.Random(seed)
    parameters = _parameters(chance, queue_count)
    at = START_AT
    epochs: list[Row] = []

    interval_ms = parameters["check_interval_ms"]
    ttl_ms = min(parameters["orphan_operation_ttl_ms"], 20_000)

    for _ in range(epoch_count or chance.randint(2, 9)):
        other_ms = chance.choice((0, 1, 1, 2, 4, 5, 6, 10, 11, 30)) * SECOND_MS
        epochs.append(
            {
                "at": at,
                "queues": [],
                "halves": [],
                "operations": [],
                "schedules": [],
                "commands": [],
            }
        )

        at += chance.choices((interval_ms, ttl_ms, other_ms), (4, 1, 5))[0]

    for queue_id in range(queue_count):
        _add_queue(chance, epochs, queue_id, checks=checks, early=early)

    _add_schedules(chance, epochs, queue_count)

    if checks:
        _add_commands(chance, epochs, queue_count)
        _write_targets_oddly(random.Random(f"{seed} targets"), epochs)
        _change_parameters(random.Random(f"{seed} parameters"), epochs)

    _add_spans(random.Random(f"{seed} spans"), parameters, epochs)
    _require(random.Random(f"{seed} requirements"), parameters, epochs, changes=checks)
    _sign(random.Random(f"{seed} signatures"), epochs)
    _limit_groups(random.Random(f"{seed} groups"), parameters, epochs)

    if floors:
        _raise_floors(random.Random(f"{seed} floors"), epochs, queue_count)

    return {"seed": seed, "parameters": parameters, "epochs": epochs}


def _parameters(chance: random.Random, queue_count: int) -> Row:
    return {
        **OF_TODAY,
        "transaction_timeout_ms": chance.choice((1_000, 3_000, 6_000)),
        "check_interval_ms": chance.choice((1, 1_000, 2_000, 5_000, 5_000, 10_000)),
        "check_max": chance.choice((0, 1, 1, 2, 3, 15)),
        "half_retention_ms": chance.choice((6_000, 20_000, 40_000, 259_200_000, 259_200_000)),
        "check_rate_max": chance.choice((1, 2, 3, 7, 20, queue_count, 50_000, 50_000)),
        "late_end_policy": chance.choice(("apply", "apply", "reject")),
        "orphan_operation_ttl_ms": chance.choice((1_000, 5_000, 20_000, 3_600_000)),
        "auto_create_topics": chance.random() < 0.8,
        "default_queue_count": chance.randint(1, 4),
        "topics_max": chance.choice((0, 1, 2, 3, 1_000, 1_000)),
        "delay_levels_ms": chance.choice(((1_000, 5_000, 10_000), (4_000,))),
        "deliver_at_max_ms": chance.choice((10_000, 2_592_000_000)),
        "deliver_at_goes_first": True,
        "due_at_max": 9_223_286_400_000,
        "require_transaction_id": False,
        "reject_after_immunity": False,
    }


def parameters_at(world: Row, epoch: Row) -> Row:
    """Return the parameters in force at an epoch: the world's, but what a restart has changed."""
    return {**world["parameters"], **epoch.get("parameters", {})}


def _change_parameters(chance: random.Random, epochs: list[Row]) -> None:
    """Restart the job now and then with other settings, which hold from that epoch on."""
    changed: Row = {}

    for epoch in epochs[1:]:
        if chance.random() < 0.15:
            changed = {
                "check_interval_ms": chance.choice((1_000, 5_000)),
                "check_max": chance.choice((1, 2, 15)),
                "check_rate_max": chance.choice((2, 50_000)),
                "late_end_policy": chance.choice(("apply", "reject")),
                "orphan_operation_ttl_ms": chance.choice((1_000, 20_000)),
            }

        if changed:
            epoch["parameters"] = changed


def _add_spans(chance: random.Random, parameters: Row, epochs: list[Row]) -> None:
    """Delay some messages by a span; which of several delays counts, and where instants end."""
    parameters["deliver_at_goes_first"] = chance.random() < 0.8
    parameters["due_at_max"] = chance.choice((START_AT + 20_000, 9_223_286_400_000))
    for epoch in epochs:
        for row in (*epoch["halves"], *epoch["schedules"]):
            if chance.random() < 0.15:
                row["delay_ms"] = chance.choice((0, 1, 1_000, 8_000, 99_999_000))


def _require(chance: random.Random, parameters: Row, epochs: list[Row], *, changes: bool) -> None:
    """Require transaction ids and ends in time, or not; a restart can change it."""
    for name in ("require_transaction_id", "reject_after_immunity"):
        parameters[name] = chance.random() < 0.5
        if changes and chance.random() < 0.3:
            for epoch in epochs[chance.randrange(len(epochs)) :]:
                epoch.setdefault("parameters", {})
                epoch["parameters"] = {**epoch["parameters"], name: not parameters[name]}


def _write_targets_oddly(chance: random.Random, epochs: list[Row]) -> None:
    """Write the numbers of some targets with leading zeros, and some targets so that none reads."""
    for epoch in epochs:
        for row in epoch["commands"]:
            if row["target"] is not None and chance.random() < 0.4:
                row["target"] = _odd_target(chance, row["target"])


def _odd_target(chance: random.Random, target: str) -> str:
    zeros = chance.choice(("0", "00", "000"))
    if chance.random() < 0.7:
        return re.sub(r"(?<=[:=-])(?=[0-9])", zeros, target)

    kind, colon, rest = target.partition(":")
    many = re.sub(r"(?<=[:=-])(?=[0-9]+$)", "0" * 18, target)  # one digit more than is read

    return chance.choice(
        (
            f" {target}",
            f"{target}\n",
            f"{target}-0",
            f"{kind.upper()}{colon}{rest}",
            many,
            f"{kind}{colon}+{rest}",
            target.replace("0", "\u0660"),
            rest,
            "",
        )
    )


def _sign(chance: random.Random, epochs: list[Row]) -> None:
    """Sign the operations of one group, or not, from some epoch on."""
    first = chance.randrange(len(epochs))
    for number, epoch in enumerate(epochs):
        for operation in epoch["operations"]:
            has_key = operation["producer_group"] == SIGNING and number >= first
            is_asked = has_key and operation["error"] is None
            operation["is_signed"] = chance.random() > 0.2 if is_asked else None


def _limit_groups(chance: random.Random, parameters: Row, epochs: list[Row]) -> None:
    """Limit the topics that a group makes; some schedule records have a group."""
    parameters["group_topics_max"] = chance.choice((1, 2, 1_000))
    for epoch in epochs:
        for row in epoch["schedules"]:
            row["producer_group"] = chance.choice((None, None, *GROUPS))


def _raise_floors(chance: random.Random, epochs: list[Row], queue_count: int) -> None:
    """Raise each queue's floor now and then, to where its landing stood after an earlier epoch."""
    for queue_id in range(queue_count):
        floor = 0
        for number, epoch in enumerate(epochs):
            if number and chance.random() < 0.3:
                earlier = chance.choice(epochs[:number])
                floor = max(floor, earlier["queues"][queue_id]["half_end"])
            epoch["queues"][queue_id]["floor"] = floor


def _add_queue(
    chance: random.Random, epochs: list[Row], queue_id: int, *, checks: bool, early: bool
) -> None:
    halves = _halves(chance, queue_id, chance.randint(1, 9))
    operations = _operations(chance, queue_id, halves, early=early)
    cut(chance, epochs, queue_id, halves, operations, early=early)

    stored_at = START_AT - chance.choice((0, 1, 5, 6, 7, 20)) * SECOND_MS
    for half in halves:
        stored_at += chance.choice((0, 0, 1, 1_000, 3_000))
        half["stored_at"] = stored_at

    stored_at = START_AT
    for operation in operations:
        stored_at += chance.choice((1, 1_000))
        operation["stored_at"] = stored_at

    known_at = halves_known_at = None

    for epoch in epochs:
        row = epoch["queues"][queue_id]
        if checks and chance.random() < 0.8:
            known_at = max(known_at or 0, epoch["at"] - _lag(chance))
        if checks and chance.random() < 0.8:
            halves_known_at = max(halves_known_at or 0, epoch["at"] - _lag(chance))
        row |= {"known_at": known_at, "halves_known_at": halves_known_at}


def _lag(chance: random.Random) -> int:
    return chance.choice((0, 0, 0, 1, 1_000, 5_000, 20_000))


def _halves(chance: random.Random, queue_id: int, count: int) -> list[Row]:
    rows: list[Row] = []
    offset = chance.choice((0, 0, 0, 5))

    while len(rows) < count:
        group = chance.choice(GROUPS)
        members: list[tuple[str, int | None, int | None]] = []
        kind = chance.random()

        if kind < 0.25:
            size = chance.choice((2, 2, 3))
            sequence = [*range(size), *([chance.randrange(size)] * (chance.random() < 0.2))]
            chance.shuffle(sequence)
            members = [(chance.choice(SET_IDS[:1]), size, seq) for seq in sequence]
        elif kind < 0.45:
            size = chance.choice((2, 2, 3))
            members = [(chance.choice(SET_IDS), size, chance.randrange(size))]
        elif kind < 0.6:
            members = [(chance.choice(SET_IDS), 1, 0)]  # a set of one, or once more the same
        else:
            id_ = chance.choice((f"t{len(rows)}", f"t{len(rows)}", "s0"))
            members = [(id_, None, None)]

        for id_, tran_size, seq in members:
            rows.append(_half(chance, queue_id, offset, group))
            rows[-1] |= {"transaction_id": id_, "tran_size": tran_size, "tran_seq": seq}
            offset += chance.choice((1, 1, 1, 1, 2, 3))

    return rows


def _half(chance: random.Random, queue_id: int, offset: int, group: str) -> Row:
    return {
        "queue_id": queue_id,
        "queue_offset": offset,
        "producer_group": group,
        **_routing(chance),
        "immunity_ms": chance.choice((None, None, None, 0, 1_000, 6_000, 60_000)),
        "error": "too_large" if chance.random() < 0.06 else None,
    }


def _routing(chance: random.Random) -> Row:
    delay: Row = {"delay_level": None, "delay_ms": None, "deliver_at": None}
    if chance.random() < 0.25:
        delay["delay_level"] = chance.choice((0, 1, 2, 3, 4, 99))
    if chance.random() < 0.15:
        delay["deliver_at"] = START_AT + chance.choice((-9, 0, 1, 5, 8, 20, 99_999)) * SECOND_MS
    asked = chance.choice((None, None, None, 0, 1, 2, 3, 5))
    return {"real_topic": chance.choice(TOPICS), "real_queue_id": asked, **delay}


def _operations(
    chance: random.Random, queue_id: int, halves: list[Row], *, early: bool
) -> list[Row]:
    rows: list[Row] = []
    op_offset = chance.choice((0, 0, 7))
    last = halves[-1]["queue_offset"]

    for _ in range(chance.randint(0, 12)):
        target = chance.choice(halves)
        named = [target]

        if chance.random() < 0.3:
            same = [half for half in halves if half["producer_group"] == target["producer_group"]]
            named += chance.choices(same, k=chance.randint(1, 3))
            chance.shuffle(named)

        offsets = [half["queue_offset"] for half in named]
        ids = [half["transaction_id"] for half in named]

        if early and chance.random() < 0.08:
            offsets[chance.randrange(len(offsets))] = last + chance.randint(1, 3)
        if early and chance.random() < 0.15:
            _name_whole_set(chance, halves, target, offsets, ids)
        if chance.random() < 0.05:
            offsets[chance.randrange(len(offsets))] = chance.randint(0, last)
        if chance.random() < 0.05:
            ids[chance.randrange(len(ids))] = "nope"

        is_readable = chance.random() > 0.04
        is_foreign = chance.random() < 0.05
        rows.append(
            {
                "queue_id": queue_id,
                "op_queue_offset": op_offset,
                "producer_group": chance.choice(GROUPS) if is_foreign else target["producer_group"],
                "decision": chance.choices(("COMMIT", "ROLLBACK", "UNKNOWN"), (5, 3, 2))[0],
                "half_offsets": offsets,
                "transaction_ids": ids if chance.random() < 0.6 else None,
                "cause": chance.choice(("operation", "operation", "check_answer", "operator")),
                "error": None,
            }
        )

        if not is_readable:
            empty = {"half_offsets": None, "transaction_ids": None, "decision": None}
            rows[-1] |= {"error": "bad_body", **empty}

        op_offset += chance.choice((1, 1, 1, 2))
    return rows


def _name_whole_set(
    chance: random.Random, halves: list[Row], target: Row, offsets: list[int], ids: list[str]
) -> None:
    """Name all halves of a set, its duplicates too: some may land long after the others."""
    key = ("producer_group", "transaction_id", "tran_size")
    for half in halves:
        if half["tran_size"] is not None and all(half[name] == target[name] for name in key):
            at = chance.randint(0, len(offsets))
            offsets.insert(at, half["queue_offset"])
            ids.insert(at, half["transaction_id"])


def _add_schedules(chance: random.Random, epochs: list[Row], queue_count: int) -> None:
    for offset in range(chance.randint(0, 2 + queue_count // 4)):
        epoch = chance.choice(epochs)
        behind = chance.choice((-1_000, 0, 1, 1_000, 5_000, 10_000))

        epoch["schedules"].append(
            {
                "queue_id": chance.randint(0, 2),
                "queue_offset": offset,
                "stored_at": epoch["at"] - behind,
                **_routing(chance),
                "error": "bad_real_topic" if chance.random() < 0.1 else None,
            }
        )


def _add_commands(chance: random.Random, epochs: list[Row], queue_count: int) -> None:
    admin_offset = 0
    for epoch in epochs:
        seen = [half for before in epochs for half in before["halves"] if before is not epoch]

        for _ in range(chance.randint(0, 2 + queue_count // 4)):
            half = chance.choice(seen) if seen else {"queue_id": 0, "queue_offset": 0}
            coordinate = f"{half['queue_id']}-{half['queue_offset']}"
            topic = f"{chance.choice(TOPICS)}:{chance.randint(1, 6)}"

            command, target = chance.choice(
                (
                    ("RESUME", f"half:{coordinate}"),
                    ("RESUME", f"half:{coordinate}"),
                    ("RESEND", f"half:{coordinate}"),
                    ("RESUME", f"undeliverable:{chance.randint(0, 2 + queue_count // 2)}"),
                    ("RESUME", f"undeliverable:{chance.randint(0, 3)}"),
                    ("CANCEL", f"half:{coordinate}"),
                    ("CANCEL", f"schedule:{chance.randint(0, 2)}-{chance.randint(0, 3)}"),
                    ("CREATE_TOPIC", f"topic:{topic}"),
                    ("ALTER_TOPIC", f"config:{topic.replace(':', ':retention.ms=')}"),
                    ("ACCEPT_LOSS", f"lost:half:0:{chance.randint(0, 3)}-{chance.randint(0, 3)}"),
                    ("CANCEL", "nothing"),
                    ("PING", None),
                    ("MAINTAIN", None),
                )
            )

            error = "unknown_command" if chance.random() < 0.03 else None
            row = {"command": command, "target": target, "error": error}
            epoch["commands"].append({"admin_offset": admin_offset, **row})
            admin_offset += 1
