"""A planned epoch that an earlier run has left: whether it can be finished here; its records."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checker.frames import RULE_VERSION
from pipelines.epoch.batch import Batch
from pipelines.epoch.land import read_again
from pipelines.epoch.parameters import EpochSettings, plan_limits
from pipelines.epoch.restore import topics_before
from pipelines.epoch.signatures import judge_signatures
from pipelines.errors import StartError
from storage import schemas
from storage.lake.epochs import Plan
from storage.lake.lake import Lake
from storage.tasks.land import Landing
from storage.wire.kinds import KINDS, OP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_our_rules(lake: Lake, plan: Plan) -> Plan:
    """Returns the plan; under our rule version if its own has written no rows yet.

    Errors: StartError if rows are written.
    """
    if plan.rule_version == RULE_VERSION:
        return plan
    topics = topics_before(lake, plan.epoch + 1)["table_id"].to_pylist()
    tables = [t for t in schemas.TABLES if t not in ("lake", "epochs")]
    tables += [f"topics/{table_id}" for table_id in topics]
    if any(lake.holds(table, plan.epoch) for table in tables):
        raise StartError(
            f"epoch {plan.epoch} was begun with rule version {plan.rule_version} and this "
            f"txlake has {RULE_VERSION}: finish it with a txlake of rule version "
            f"{plan.rule_version} first"
        )
    return replace(plan, rule_version=RULE_VERSION)


def batch_again(spark: SparkSession, lake: Lake, plan: Plan, settings: EpochSettings) -> Batch:
    """Returns a plan's records, from tables that hold the epoch, else from Kafka."""
    held = [kind for kind in KINDS if lake.holds(kind, plan.epoch)]
    landing = Landing(lake.place, plan.epoch, plan_limits(plan))
    count = sum(r.to_offset - r.from_offset for r in plan.ranges)
    tasks = settings.sizes.landing_tasks(count)
    batch = read_again(spark, lake, plan, held, landing, tasks, settings.kafka)
    if OP not in held:  # nothing was decided yet that depends on a signature
        judge_signatures(batch, settings.security)
    settings.sizes.saw(batch.landed_messages, batch.landed_bytes)
    return batch
