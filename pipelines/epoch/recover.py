"""A planned epoch that an earlier run did not commit: whether we can finish it, and its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from checker.frames import RULE_VERSION
from pipelines.epoch.batch import Batch
from pipelines.epoch.land import Lander
from pipelines.epoch.parameters import EpochSettings, plan_limits
from pipelines.epoch.recorded_state import topics_before
from pipelines.epoch.signatures import verify_signatures
from pipelines.errors import StartError
from storage import schemas
from storage.lake.epochs import Partition, Plan
from storage.lake.lake import Lake
from storage.rows import to_rows
from storage.tasks.land import PAYLOAD_COLUMNS, Landing
from storage.wire.decode import RECORDS
from storage.wire.record_kinds import HALF, KINDS, OP, SCHEDULE


def adopt_rule_version(lake: Lake, plan: Plan) -> Plan:
    """Returns the plan; under our rule version if its own has written no rows yet.

    Errors: StartError if rows are written.
    """
    if plan.rule_version == RULE_VERSION:
        return plan

    table_ids = topics_before(lake, plan.epoch + 1)["table_id"].to_pylist()
    tables = schemas.TABLES.keys() - {"lake", "epochs"}
    tables |= {f"topics/{table_id}" for table_id in table_ids}
    if any(lake.has_epoch(table, plan.epoch) for table in tables):
        raise StartError(
            f"epoch {plan.epoch} was begun with rule version {plan.rule_version} and this "
            f"txlake has {RULE_VERSION}: finish it with a txlake of rule version "
            f"{plan.rule_version} first"
        )
    return replace(plan, rule_version=RULE_VERSION)


def next_offsets(lake: Lake, plan: Plan) -> dict[Partition, int]:
    """Returns the offset of each partition that Kafka must still have to finish a planned epoch.

    Topics that are landed go on behind the epoch.
    """
    landed_topics = {plan.topics[kind] for kind in KINDS if lake.has_epoch(kind, plan.epoch)}
    return {
        r.topic_partition: r.to_offset if r.topic in landed_topics else r.from_offset
        for r in plan.ranges
    }


def reload_batch(
    lander: Lander,
    lake: Lake,
    plan: Plan,
    settings: EpochSettings,
    present: Callable[[Mapping[Partition, range]], dict[Partition, range]],
) -> Batch:
    """Returns a plan's records, from tables that hold the epoch, else landed again from Kafka.

    Input: `present`: from offsets to those that are not accepted as lost.
    """
    landed_kinds = [kind for kind in KINDS if lake.has_epoch(kind, plan.epoch)]
    limits = plan_limits(plan)
    missing_topics = {topic for kind, topic in limits.topics.items() if kind not in landed_kinds}
    offset_ranges = present(
        {
            r.topic_partition: range(r.from_offset, r.to_offset)
            for r in plan.ranges
            if r.topic in missing_topics
        }
    )
    batch = Batch()

    count = sum(map(len, offset_ranges.values()))
    if count:
        landing = Landing(lake.location, plan.epoch, limits)
        tasks = settings.sizes.landing_tasks(count)
        batch = lander.land(offset_ranges, landing, settings.source, tasks)

    for kind in landed_kinds:
        batch.add_table(_landed_rows(lake, kind, plan.epoch), kind)
    if OP not in landed_kinds:  # then nothing that depends on a signature is written
        verify_signatures(batch, settings.security)
    settings.sizes.observe(batch.landed_messages, batch.landed_bytes)
    return batch


def _landed_rows(lake: Lake, kind: str, epoch: int) -> pa.Table:
    """Returns the narrow rows of an epoch that a table holds. Output: RECORDS."""
    omitted = PAYLOAD_COLUMNS if kind in (HALF, SCHEDULE) else ()
    columns = [name for name in lake.schema(kind).names if name not in omitted]
    rows = lake.read(kind, columns, pc.field("epoch") == epoch)
    return to_rows(rows, RECORDS, kind=kind)
