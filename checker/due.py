"""Whether time alone asks for an epoch, without any record."""

from __future__ import annotations

from checker.frames import Instants, Parameters, State
from checker.rules.delay import is_due
from checker.rules.naming import has_orphan
from checker.rules.timing import is_time_due


def is_something_due(state: State, instants: Instants, parameters: Parameters) -> bool:
    """Returns whether a check, a discard, a delivery or an orphaned operation is due."""
    return (
        bool(is_due(state.delayed["deliver_at"], instants.epoch_at).any())
        or has_orphan(state.waiting, instants.queues, parameters.orphan_operation_ttl_ms)
        or bool(is_time_due(state.halves, instants.queues, parameters).any())
    )
