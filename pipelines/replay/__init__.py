"""History run again: proved, rebuilt, or decided under other parameters."""

from pipelines.replay.new_lake import Rebuilt, rebuild
from pipelines.replay.other_parameters import WhatIf, what_if
from pipelines.replay.verification import Verified, verify

__all__ = ["Rebuilt", "Verified", "WhatIf", "rebuild", "verify", "what_if"]
