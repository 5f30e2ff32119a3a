"""A lake's history under other parameters: checks, discards, outcomes.

The records, their order and `epoch_at` are as recorded. Where rows below the floor are deleted, it
begins above the floor, with the state that history had there.

Two assumptions fill the gaps of history. Kafka would have acknowledged a check that was never sent
as it did the group's last one. Producers would have sent the same operations at the same
time. Where history was idle there are no epochs; epochs are put there when something would have
been due.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import ATTEMPTS, Parameters
from checker.frames_ops.sql import run
from checker.rules.timing import next_due_at
from pipelines.epoch.batch import Batch
from pipelines.epoch.parameters import plan_parameters
from pipelines.epoch.recorded_state import restore
from pipelines.epoch.write import EpochWriter
from pipelines.replay.epochs import NarrowApplier, RecordedAsker, ReplayedEpochs
from pipelines.replay.kept_rows import KeptRows
from pipelines.replay.scratch import LOOKED_UP, ScratchLake
from pipelines.replay.source import ProgressCallback, Source
from pipelines.settings import SettingsError, parse
from pipelines.settings.allowed import SPAN_MS_MAX
from storage.errors import LakeError
from storage.files.location import LakeLocation
from storage.lake.epochs import Plan
from storage.lake.integrity import require_recorded
from storage.lake.lake import Lake
from storage.lake.progress import read_progress
from storage.wire.record_kinds import OP

TICK_MS = 1_000  # the stream's trigger interval: so often the job looks for what is due

_IMAGINED_ATTEMPTS = """
SELECT d.queue_id, d.queue_offset, d.arm, d.check_times,
  concat_ws('-', d.queue_id, d.queue_offset, d.arm, d.check_times) AS check_id, d.producer_group,
  coalesce(c.acknowledged, g.acknowledged, true) AS acknowledged
FROM due d
LEFT JOIN (SELECT queue_id, queue_offset, arm, check_times, bool_or(acknowledged) AS acknowledged
           FROM checks GROUP BY ALL) c USING (queue_id, queue_offset, arm, check_times)
LEFT JOIN last_acks g ON d.producer_group = g.producer_group
"""
_LAST_ACKS = pa.schema([("producer_group", pa.string()), ("acknowledged", pa.bool_())])
_FINAL = """
SELECT queue_id, queue_offset, arg_max(outcome, epoch) AS outcome, arg_max(cause, epoch) AS cause,
  max(decided_at) AS decided_at, any_value(producer_group) AS producer_group,
  any_value(transaction_id) AS transaction_id
FROM {table} GROUP BY ALL
"""
_DIFFERENT_OUTCOMES = f"""
WITH history AS ({_FINAL.format(table="there")}), imagined AS ({_FINAL.format(table="replayed")})
SELECT coalesce(h.queue_id, i.queue_id) AS queue_id,
  coalesce(h.queue_offset, i.queue_offset) AS queue_offset,
  coalesce(h.producer_group, i.producer_group) AS producer_group,
  coalesce(h.transaction_id, i.transaction_id) AS transaction_id,
  h.outcome, h.cause, h.decided_at, i.outcome AS what_if_outcome, i.cause AS what_if_cause,
  i.decided_at AS what_if_decided_at
FROM history h FULL JOIN imagined i ON h.queue_id = i.queue_id AND h.queue_offset = i.queue_offset
WHERE h.outcome IS DISTINCT FROM i.outcome OR h.cause IS DISTINCT FROM i.cause
ORDER BY ALL
"""
_COUNTS = """
SELECT (SELECT count(*) FROM checks) AS checks,
  (SELECT count(*) FROM checks WHERE acknowledged) AS acknowledged,
  (SELECT count(*) FROM outcomes WHERE outcome = 'DISCARDED') AS discards,
  (SELECT count(*) FROM outcomes WHERE outcome = 'COMMITTED') AS committed,
  (SELECT count(*) FROM outcomes WHERE outcome = 'ROLLED_BACK') AS rolled_back,
  (SELECT count(*) FROM outcomes WHERE cause = 'late_end') AS late_ends,
  (SELECT count(*) FROM halves WHERE discard_cause IS NULL) AS pending
"""
_GROUPS = """
WITH counted AS (
  SELECT producer_group, 'checks' AS what, count(*) AS n FROM there_checks GROUP BY ALL
  UNION ALL
  SELECT producer_group, 'what_if_checks', count(*) FROM checks GROUP BY ALL
  UNION ALL
  SELECT producer_group, 'discards', count(*) FROM there_outcomes
  WHERE outcome = 'DISCARDED' GROUP BY ALL
  UNION ALL
  SELECT producer_group, 'what_if_discards', count(*) FROM outcomes
  WHERE outcome = 'DISCARDED' GROUP BY ALL
)
SELECT producer_group,
  coalesce(sum(n) FILTER (what = 'checks'), 0)::BIGINT AS checks,
  coalesce(sum(n) FILTER (what = 'what_if_checks'), 0)::BIGINT AS what_if_checks,
  coalesce(sum(n) FILTER (what = 'discards'), 0)::BIGINT AS discards,
  coalesce(sum(n) FILTER (what = 'what_if_discards'), 0)::BIGINT AS what_if_discards
FROM counted GROUP BY producer_group ORDER BY producer_group
"""
_KEPT = (*LOOKED_UP, "checks")
# Parameters that bound each other: a half is not given up before it can be checked.
_BOUNDED = ("transaction_timeout_ms", "half_retention_ms")


@dataclass(frozen=True)
class WhatIf:
    """The differences. `outcomes` has the halves that would have ended otherwise."""

    first_epoch: int
    last_epoch: int
    parameters: Mapping[str, Any]
    numbers: pa.Table
    groups: pa.Table
    outcomes: pa.Table


class _WhatIfCheckSender(RecordedAsker):
    """An asker whose checks Kafka acknowledges as it did then, or as the last one of the group."""

    def __init__(self) -> None:
        super().__init__()
        self._last_ack: dict[str, bool] = {}

    def load_history(self, checks: pa.Table) -> None:
        """Takes Kafka's acknowledgements of earlier attempts, in their order."""
        self._last_ack |= {row["producer_group"]: row["acknowledged"] for row in checks.to_pylist()}

    def ask(self, lake: Lake, due: pa.Table) -> pa.Table:
        self.load_history(self.checks)
        if due.num_rows == 0:
            return ATTEMPTS.empty_table()

        last_acks = [
            {"producer_group": group, "acknowledged": acknowledged}
            for group, acknowledged in self._last_ack.items()
        ]
        return run(
            _IMAGINED_ATTEMPTS,
            due=due,
            checks=self.checks,
            last_acks=pa.Table.from_pylist(last_acks, schema=_LAST_ACKS),
        ).cast(ATTEMPTS)


class _WhatIfEpochs(ReplayedEpochs):
    """The runner of epochs under other parameters, and of epochs that history did not have."""

    def set_parameters(self, parameters: Mapping[str, Any], tick_ms: int) -> None:
        """Sets the other parameters, and how often the job looks for what is due."""
        self._changed = parameters
        self._tick_ms = tick_ms

    def _applier(self, plan: Plan, batch: Batch) -> EpochWriter:
        return NarrowApplier(
            self._lake, plan, batch, self._deliverer, self._sizes, None, source=self._lake
        )

    def replay(self, plan: Plan, records: Mapping[str, pa.Table], *_: Any, **__: Any) -> None:
        """Runs an epoch under the other parameters, after those that would have come before it."""
        for tick in self._ticks(plan):
            checks = self._recorded.checks
            self._recorded.checks = ATTEMPTS.empty_table()
            self._run(tick, {})
            self._recorded.checks = checks

        self._run(plan, records)

    def _run(self, plan: Plan, records: Mapping[str, pa.Table]) -> None:
        last = self.progress.last
        known = {} if last is None else last.known_at
        known_at = {q: max(at, known.get(q, at)) for q, at in plan.known_at.items()}
        parameters = {**plan.parameters, **self._changed}
        plan = replace(
            plan, epoch=self.progress.next_epoch, known_at=known_at, parameters=parameters
        )
        super().replay(plan, records)

    def _ticks(self, plan: Plan) -> Iterator[Plan]:
        """Returns the epochs that would have run in the idle time before an epoch."""
        last = self.progress.last
        tick_ms = self._tick_ms
        if last is None or not tick_ms or last.owner != plan.owner:
            return
        if any(r.end_offset > r.to_offset for r in last.ranges):
            return  # records were waiting: not idle

        queues = list(last.queue_ends(last.topics[OP]))
        ranges = tuple(replace(r, from_offset=r.to_offset) for r in last.ranges)
        tick = last.epoch_at
        parameters = replace(plan_parameters(plan), **self._changed)

        while True:
            due_at = next_due_at(self.state.halves, parameters)
            if due_at is None:
                return

            steps = max(1, -(-(due_at - tick) // tick_ms))
            tick += steps * tick_ms
            # A check or discard that is due within the last two looks made the recorded epoch.
            if tick + 2 * tick_ms > plan.epoch_at:
                return

            known = dict.fromkeys(queues, tick)
            yield replace(last, epoch_at=tick, known_at=known, ranges=ranges)


def what_if(
    lake: Lake | LakeLocation | str,
    *,
    tick_ms: int = TICK_MS,
    progress: ProgressCallback | None = None,
    **parameters: Any,
) -> WhatIf:
    """Returns a lake's history under other parameters of [transaction], compared with the real one.

    The lake is only read. `tick_ms`: how often the job looked whether something was due; 0: only in
    the recorded epochs.
    Errors: LakeError, also if the floor has moved meanwhile and rows were deleted; SettingsError
    for a parameter that is not allowed.
    """
    return run_what_if(lake, parameters, tick_ms, progress)


def run_what_if(
    lake: Lake | LakeLocation | str,
    parameters: Mapping[str, Any],
    tick_ms: int = TICK_MS,
    progress: ProgressCallback | None = None,
) -> WhatIf:
    """Returns the same as `what_if`, with the parameters in a mapping."""
    lake = lake if isinstance(lake, Lake) else Lake(lake)
    lake.lake_id()

    kept = KeptRows(lake)
    newest = require_recorded(lake).last
    if newest is None:
        raise LakeError(f"the lake {lake.path} has no committed epoch")
    changed = _checked_parameters(parameters, plan_parameters(newest))

    source = Source(lake)
    first = newest.floor.first_epoch
    last = newest.epoch
    report = source.progress_reporter(first, last, progress)

    try:
        answer = _answer(source, changed, tick_ms, (first, last), report)
    except LakeError:
        kept.require_above(first)
        raise

    kept.require_above(first)
    return answer


def _answer(
    source: Source,
    changed: Mapping[str, Any],
    tick_ms: int,
    bounds: tuple[int, int],
    report: Callable[[int], None],
) -> WhatIf:
    first = bounds[0]
    with tempfile.TemporaryDirectory(prefix="txlake-replay-") as folder:
        scratch = ScratchLake(folder, source, first)
        asker = _WhatIfCheckSender()
        before = source.rows("checks", (0, first - 1), [*_LAST_ACKS.names, "epoch"])
        asker.load_history(before.sort_by("epoch"))

        epochs = _WhatIfEpochs(scratch, source, asker)
        epochs.resume_from(source.progress_before(first), source.lake)
        epochs.set_parameters(changed, tick_ms)

        for chunk in source.chunks(*bounds, narrow=True):
            for _ in epochs.replay_chunk(chunk, report):
                scratch.persist_lookup_tables((*_KEPT, *epochs.undeliverable_tables()))

        epochs.close()
        return _compare(source, scratch, epochs, changed, bounds)


def _checked_parameters(parameters: Mapping[str, Any], recorded: Parameters) -> dict[str, Any]:
    """Returns the parameters, checked as the settings are checked, beside those of the lake."""
    beside = {name: getattr(recorded, name) for name in _BOUNDED}
    values = {
        # What the question cannot name refuses no value of what it names.
        "lake": {"path": "-", "retention_ms": SPAN_MS_MAX},
        "kafka": {"bootstrap_servers": "none:1"},
        "transaction": {**beside, **parameters},
    }
    settings = parse(values, "what-if")

    idle = sorted(set(parameters) - set(asdict(Parameters())))
    if idle:
        raise SettingsError(f"what-if: [transaction] {idle[0]} decides nothing")

    return {name: getattr(settings.transaction, name) for name in parameters}


def _compare(
    source: Source,
    scratch: ScratchLake,
    epochs: _WhatIfEpochs,
    changed: Mapping[str, Any],
    bounds: tuple[int, int],
) -> WhatIf:
    is_new = pc.field("epoch") >= bounds[0]
    tables = ("outcomes", "checks")
    recorded = {table: source.rows(table, bounds) for table in tables}
    imagined = {table: scratch.read(table, where=is_new) for table in tables}

    history = restore(source.lake, read_progress(source.lake, until=bounds[1]))
    historic_counts = _counts(recorded, history.halves)
    imagined_counts = _counts(imagined, epochs.state.halves)
    numbers = pa.table(
        {
            "measure": pa.array(historic_counts.keys(), pa.string()),
            "history": pa.array(historic_counts.values(), pa.int64()),
            "what_if": pa.array([imagined_counts[name] for name in historic_counts], pa.int64()),
        }
    )

    groups = run(
        _GROUPS,
        there_checks=recorded["checks"],
        there_outcomes=recorded["outcomes"],
        **imagined,
    )
    outcomes = run(_DIFFERENT_OUTCOMES, there=recorded["outcomes"], replayed=imagined["outcomes"])
    return WhatIf(*bounds, changed, numbers, groups, outcomes)


def _counts(tables: Mapping[str, pa.Table], halves: pa.Table) -> dict[str, int]:
    """Returns the numbers of checks and outcomes, and of halves that are pending."""
    counts: dict[str, int] = run(_COUNTS, **tables, halves=halves).to_pylist()[0]
    return counts
