"""What came of a chaos run: every difference, and how many of each kind of thing happened."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bench.chaos.compare import Facts, compare, first, read_facts
from bench.chaos.counts import COMMON, RARE, counts_of, missing
from bench.chaos.journal import COMMIT, ROLLBACK, SILENT
from bench.chaos.published_compare import compare_published, figures_of
from bench.chaos.raw_compare import compare_raw
from bench.chaos.run import Chaos
from bench.chaos.settings import CHECK_MAX
from pipelines import replay
from storage.lake.lake import Lake
from storage.verify.run import verify


def differences(chaos: Chaos, facts: Facts) -> list[str]:
    """Returns all that is not as it should be: journals, `txlake verify`, the epochs run again."""
    lake = Lake(chaos.location)
    found = compare(facts, chaos.journal, chaos.seen, CHECK_MAX)
    found += [f"raw: {text}" for text in compare_raw(lake, facts, chaos.raw_journal)]

    if chaos.published is not None:
        told = compare_published(facts, chaos.published, chaos.seen_in_kafka)
        found += [f"published: {text}" for text in told]

    for finding in verify(lake).findings:
        found += [f"verify: {finding.invariant.name}: {row}" for row in finding.rows]

    replayed = replay.verify(lake)
    found += first([f"replay: {row}" for row in replayed.differences.to_pylist()])
    if not replayed.is_equal and not replayed.differences.num_rows:
        found.append(f"replay: {replayed.compared.to_pylist()}")

    return [*found, *chaos.counts.unexpected]


def report(chaos: Chaos, facts: Facts, seconds: float, found: Sequence[str]) -> dict[str, Any]:
    """Returns the figures of a run."""
    ends = chaos.journal.ends()
    seen = chaos.seen.rows()
    counts = chaos.counts
    starts = chaos.drivers.start_s
    records = chaos.raw_journal.records().values()

    figures = {
        "seed": chaos.seed,
        "lake": chaos.location.path,
        "drivers": len(chaos.drivers.names),
        "seconds": round(seconds),
        "kills": dict(counts.kills),
        "kills_in_all": sum(counts.kills.values()),
        "kills_while_answers_were_lost": len(counts.lost_answers),
        "answers_that_the_store_lost": sum(counts.lost_answers),
        "dead_by_their_own_hand": counts.own_deaths,
        "job_starts_refused_while_the_jvm_lived": counts.refused_starts,
        "drivers_that_stopped_since_another_was_active": counts.replaced,
        "job_starts_that_finished_an_epoch": counts.recovered_epochs,
        "job_start_s_median": statistics.median(starts) if starts else None,
        "sdk_halves": len(facts.halves),
        "sdk_transactions": dict(Counter(end for end, _ in ends.values())),
        "sdk_committed_in": dict(Counter(why for end, why in ends.values() if end == COMMIT)),
        "sdk_rolled_back_by": dict(Counter(why for end, why in ends.values() if end == ROLLBACK)),
        "sdk_ended_too_late": sum(
            ends.get(name, (SILENT,))[0] != SILENT for name in facts.given_up()
        ),
        "raw_records": dict(Counter(record.kind for record in records)),
        "raw_records_perhaps_sent": sum(record.queue_offset is None for record in records),
        "raw_records_by_story": dict(Counter(record.story for record in records)),
        "raw_promises": dict(Counter(one.kind for one in chaos.raw_journal.promises())),
        "messages": {topic: len(rows) for topic, rows in facts.messages.items()},
        "seen_by_the_consumer": len(seen),
        "seen_more_than_once": sum(times > 1 for *_, times in seen),
        **counts_of(Lake(chaos.location)),
    }

    if chaos.published is not None:
        figures["published"] = figures_of(facts, chaos.published, chaos.seen_in_kafka)

    did_not_happen = [*missing(figures, COMMON), *missing(figures, RARE)]
    return {**figures, "did_not_happen": did_not_happen, "differences": list(found)}


def facts_of(chaos: Chaos) -> Facts:
    """Reads the lake of an ended run."""
    return read_facts(Lake(chaos.location))
