"""Random histories: the decision and the plain-Python model, epoch by epoch.

TXLAKE_HISTORIES_SEED moves the seeds; a failure prints the seed, the first one
also the smallest history found.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from checker.frames_ops import active
from tests.support.comparison import Checker, attempts_of, first_difference
from tests.support.comparison_rows import rows_of_decision
from tests.support.histories import parameters_at, random_world
from tests.support.log_splits import KINDS, merged
from tests.support.model import Model
from tests.support.shrinking import describe, shrink

Row = dict[str, Any]
FIRST_SEED = int(os.environ.get("TXLAKE_HISTORIES_SEED", "0"))
PACKED = [(FIRST_SEED + number, 130) for number in range(16)]
SMALL = [(FIRST_SEED + 500_000 + number, 1 + number % 3) for number in range(20)]
CUT_SEED = FIRST_SEED + 700_000
ONE_DAY_MS = 86_400_000
SHRUNK: list[int] = []


def world_of(seed: int, queue_count: int) -> Row:
    return random_world(seed, queue_count, floors=seed % 3 == 0)


@pytest.mark.parametrize(("seed", "queue_count"), [*PACKED, *SMALL])
def test_decision_and_model_agree_after_every_epoch(
    seed: int, queue_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # as with very many halves pending: the decision sees only what it may touch
        monkeypatch.setattr(active, "FEW_ROWS", 0)
        monkeypatch.setattr(active, "_CHUNK_ROWS", 8)
    world = world_of(seed, queue_count)
    found = first_difference(world)
    if found is None:
        return
    differing = f"seed {seed}, {queue_count} queues: {sorted(found)} in epoch {found['epoch']}"
    if not SHRUNK:  # shrinking takes a minute, and failures mostly have one reason
        SHRUNK.append(seed)
        differing = describe(*shrink(world, first_difference))
    pytest.fail(differing)


def test_histories_are_two_thousand_and_hit_every_end_and_every_conflict() -> None:
    assert sum(queue_count for _, queue_count in [*PACKED, *SMALL]) >= 2_000
    hits: Counter[str] = Counter()
    for seed, queue_count in PACKED:
        world, model = world_of(seed, queue_count), Model()
        for epoch in world["epochs"]:
            decided = model.decide(epoch, parameters_at(world, epoch))
            model.record_attempts(attempts_of(epoch, decided["due"]), epoch["at"])
            hits.update(f"{row['outcome']} {row['cause']}" for row in decided["outcomes"])
            hits.update(row["reason"] for row in decided["conflicts"])
            hits.update(row["action"] for row in decided["deliveries"])
            hits.update("span" for row in decided["delayed"] if row["delay_ms"] is not None)
            hits.update(row["reason"] for row in decided["placements"] if row["reason"])
            hits.update(row["result"] for row in decided["command_results"])
            hits.update(f"arm {row['arm']}" for row in decided["outcomes"])
            hits.update(f"check {row['check_times']}" for row in decided["due"])
    causes = ("operation", "check_answer", "operator", "late_end")
    expected = {
        *(f"{outcome} {cause}" for outcome in ("COMMITTED", "ROLLED_BACK") for cause in causes),
        *("ROLLED_BACK duplicate_in_set", "DISCARDED check_max", "DISCARDED expired"),
        *("unreadable_operation", "unknown_half", "unreadable_half", "wrong_producer_group"),
        *("below_floor", "wrong_transaction_id", "duplicate_end", "conflicting_end"),
        *("orphan_expired", "bad_signature", "no_transaction_id", "after_immunity"),
        *("end_after_discard", "DELIVERED", "UNDELIVERABLE", "CANCELLED", "topic_not_allowed"),
        *(
            "queue_out_of_range",
            "group_topics_max",
            "still_undeliverable",
            "rearmed",
            "not_discarded",
            "resent",
            "not_pending",
            "resumed",
            "not_undeliverable",
        ),
        *(
            "cancelled",
            "not_delayed",
            "created",
            "grown",
            "unchanged",
            "bad_target",
            "accepted",
            "unknown_command",
        ),
        *("span", "arm 0", "arm 1", "check 1", "check 2", "check 3"),
    }
    assert expected - hits.keys() == set()


@pytest.mark.parametrize("requires_id", [False, True])
def test_cut_of_the_log_changes_no_end_no_conflict_and_no_real_queue(requires_id: bool) -> None:
    world = _cuttable(random_world(CUT_SEED, 150, checks=False, early=False, epoch_count=20))
    world["parameters"] |= {"require_transaction_id": requires_id, "reject_after_immunity": True}
    in_one, in_two, in_twenty = (_run(merged(world, count)) for count in (1, 2, 20))
    for name in ("outcomes", "conflicts", "messages"):
        assert in_one[name] == in_two[name], (CUT_SEED, name)
        assert in_one[name] == in_twenty[name], (CUT_SEED, name)
    assert len(in_one["messages"]) > 100, CUT_SEED
    reasons = Counter(row[3] for row in in_one["conflicts"])
    assert reasons["after_immunity"] > 10, CUT_SEED
    assert (reasons["no_transaction_id"] > 10) == requires_id, CUT_SEED


def test_cut_changes_no_end_and_no_conflict_though_operations_come_before_their_halves() -> None:
    """But for duplicates that are named early, and operations with several ids for one set."""
    world = _cuttable(random_world(CUT_SEED + 1, 150, checks=False, epoch_count=20))
    names = _name_what_counts(world)
    ends = []
    for count in (1, 2, 7, 20):
        rows = _run(merged(world, count))
        conflicts = [
            (queue, op, names.get((queue, offset), offset), reason)
            for queue, op, offset, reason in rows["conflicts"]
        ]
        ends.append((rows["outcomes"], sorted(conflicts, key=repr)))
    assert ends[0][0] == ends[1][0] == ends[2][0] == ends[3][0], CUT_SEED
    assert ends[0][1] == ends[1][1] == ends[2][1] == ends[3][1], CUT_SEED
    assert len(ends[0][1]) > 100, CUT_SEED


def _name_what_counts(world: Row) -> dict[tuple[int, int], Any]:
    """Let operations name no duplicate, and carry right ids or none. Return each half's set."""
    halves = {}
    names: dict[tuple[int, int], Any] = {}
    duplicates = set()
    known = set()
    for epoch in world["epochs"]:
        for half in epoch["halves"]:
            place = half["queue_id"], half["queue_offset"]
            halves[place] = half
            if half["tran_size"] is None or half["error"] is not None:
                continue
            key = (half["producer_group"], half["transaction_id"], half["tran_size"])
            names[place] = key
            seq = (half["queue_id"], *key, half["tran_seq"])
            duplicates |= {place} if seq in known else set()
            known.add(seq)
    for epoch in world["epochs"]:
        for row in epoch["operations"]:
            queue_id, offsets = row["queue_id"], row["half_offsets"] or []
            kept = [offset for offset in offsets if (queue_id, offset) not in duplicates]
            if row["error"] is None:
                ids = [halves.get((queue_id, o), {}).get("transaction_id", "nope") for o in kept]
                row |= {"half_offsets": kept, "transaction_ids": row["transaction_ids"] and ids}
    return names


def test_cut_of_one_half_queue_without_waiting_changes_no_queue_offset() -> None:
    """Each half queue has real topics of its own, so that many are compared in one run."""
    world = _cuttable(random_world(CUT_SEED, 150, checks=False, early=False, epoch_count=20))
    count = world["parameters"]["default_queue_count"]
    for epoch in world["epochs"]:
        epoch["schedules"] = []
        for half in epoch["halves"]:
            half |= dict.fromkeys(
                ("tran_size", "tran_seq", "delay_level", "delay_ms", "deliver_at")
            )
            half["real_topic"] += f"-of-{half['queue_id']}"
            if half["real_queue_id"] is not None:
                half["real_queue_id"] %= count
    in_one, in_two, in_twenty = (_run(merged(world, count)) for count in (1, 2, 20))
    assert in_one["places"] == in_two["places"] == in_twenty["places"], CUT_SEED
    assert len(in_one["places"]) > 100, CUT_SEED


def _cuttable(world: Row) -> Row:
    """Take away what depends on when topics are made."""
    wide = {
        "auto_create_topics": True,
        "topics_max": 1_000_000,
        "group_topics_max": 1_000_000,
        "default_queue_count": 4,
    }
    return {**world, "parameters": {**world["parameters"], **wide}}


def _run(world: Row) -> dict[str, list[Any]]:
    """Return what a log came to, delays included, without the epochs in which it did."""
    checker = Checker()
    outcomes: list[Any] = []
    conflicts: list[Any] = []
    places: list[Any] = []
    drain = {**world["epochs"][-1], **{kind: [] for kind in KINDS}}
    drain["at"] += 31 * ONE_DAY_MS
    for epoch in [*world["epochs"], drain]:
        rows = rows_of_decision(checker.decide(epoch, world["parameters"]))
        outcomes += [row[:-2] for row in rows["outcomes"]]
        conflicts += rows["conflicts"]
        places += rows["placements"]
    return {
        "outcomes": sorted(outcomes, key=repr),
        "conflicts": sorted(conflicts, key=repr),
        "places": sorted(places, key=repr),
        "messages": sorted(((row[0], row[1], *row[3:]) for row in places), key=repr),
    }
