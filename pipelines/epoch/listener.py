"""Listener for the events of an epoch. It reads nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from checker.frames import Decision, Inputs, State
from storage.lake.epochs import Plan
from storage.lake.lake import Lake


class EpochListener:
    """Listener with a method an event, in the order of an epoch; here each does nothing.

    An epoch that fails is decided again later.
    """

    def on_start(self, lake: Lake, last: Plan | None, state: State) -> None:
        """A start: the lake, its last committed plan, and the state after it. Errors: LakeError."""

    def on_idle(self, plan: Plan) -> None:
        """A plan that was dropped: no record came, and nothing is due."""

    def on_decided(self, plan: Plan, before: State, inputs: Inputs, decision: Decision) -> None:
        """An epoch's decision, with the state and the inputs that it was made from."""

    def on_committed(
        self,
        plan: Plan,
        state: State,
        attempts: pa.Table,
        counts: Mapping[str, int],
        step_ms: Mapping[str, int],
    ) -> None:
        """The commit of the epoch that was decided last. Input: `attempts`: ATTEMPTS."""
