"""The values that an epoch depends on beside its records: from the settings, and from its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from checker.frames import Parameters
from pipelines.epoch.task_sizing import TaskSizing
from pipelines.kafka_client.intake import Intake
from pipelines.kafka_client.options import portable_config
from pipelines.settings import KafkaSettings, SecuritySettings, Settings
from storage.lake.epochs import Plan
from storage.lake.floor import FLOOR, Floor
from storage.lake.loss import LOSSES, Loss, as_parameter
from storage.lake.snapshots import Snapshot
from storage.schemas import SNAPSHOT
from storage.tasks.kafka_reader import KafkaSource
from storage.wire.record_kinds import WireLimits

# Keys of a plan's parameters outside the rules, beside its floor and the newest snapshot: the
# limits of decoding, the epochs from one row that names all to the next, and how long a record that
# has ended still decides.
_WIRE, _SNAPSHOT_EPOCHS, _RETENTION_MS = "wire", "snapshot_epochs", "retention_ms"


@dataclass(frozen=True)
class EpochSettings:
    """The part of the settings that an epoch needs.

    `client`: librdkafka's settings, for tasks on any machine.
    """

    parameters: Parameters
    limits: WireLimits
    snapshot_epochs: int
    retention_ms: int
    kafka: KafkaSettings
    owner: str
    sizes: TaskSizing
    intake: Intake
    security: SecuritySettings = field(default_factory=SecuritySettings)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def source(self) -> KafkaSource:
        """Returns the Kafka that tasks read from."""
        servers = self.kafka.bootstrap_servers
        return KafkaSource(servers, self.client, self.intake.fetch_bytes)

    @classmethod
    def of(
        cls, settings: Settings, owner: str, parallelism: int, intake: Intake | None = None
    ) -> EpochSettings:
        """Returns the part of a job's settings; without `intake` that of a local job.

        Input: `parallelism`: the number of tasks that run at once.
        """
        return cls(
            parameters=settings.parameters(),
            limits=settings.wire_limits(),
            snapshot_epochs=settings.lake.pending_snapshot_epochs,
            retention_ms=settings.lake.retention_ms,
            kafka=settings.kafka,
            owner=owner,
            sizes=TaskSizing(parallelism, settings.stream.deliveries),
            intake=intake or Intake.of(settings),
            security=settings.security,
            client=portable_config(settings.kafka.client),
        )

    def plan_parameters(
        self, floor: Floor, snapshot: Snapshot, losses: Iterable[Loss] = ()
    ) -> dict[str, Any]:
        """Returns the values that a plan records."""
        accepted = as_parameter(losses)
        return {
            **({LOSSES: accepted} if accepted else {}),
            **asdict(self.parameters),
            _WIRE: asdict(self.limits),
            _SNAPSHOT_EPOCHS: self.snapshot_epochs,
            _RETENTION_MS: self.retention_ms,
            FLOOR: floor.as_parameter(),
            SNAPSHOT: snapshot.as_parameter(),
        }


def plan_parameters(plan: Plan | None) -> Parameters:
    """Returns the rules' parameters in force at an epoch; the defaults before the first."""
    recorded = {} if plan is None else plan.parameters
    values: dict[str, Any] = {}
    for name in {parameter.name for parameter in fields(Parameters)} & recorded.keys():
        value = recorded[name]
        values[name] = tuple(value) if isinstance(value, list) else value
    return Parameters(**values)


def plan_limits(plan: Plan) -> WireLimits:
    """Returns the limits of decoding in force at an epoch."""
    return WireLimits(**plan.parameters[_WIRE])


def planned_snapshot(plan: Plan) -> int | None:
    """Returns 1 if an epoch takes a snapshot of the state, 0 if its row only names all.

    Output: None if it does neither.
    """
    interval = plan.parameters.get(_SNAPSHOT_EPOCHS)  # None in a backfill from files
    if interval is None or plan.epoch % interval:
        return None
    return int(plan.snapshot.epoch == plan.epoch)
