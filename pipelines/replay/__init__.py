"""Run history again: prove it, rebuild it, or ask what other parameters would have done."""

from pipelines.replay.new_lake import Rebuilt, rebuild
from pipelines.replay.other_parameters import WhatIf, what_if
from pipelines.replay.verification import Verified, verify

__all__ = ["Rebuilt", "Verified", "WhatIf", "rebuild", "verify", "what_if"]
