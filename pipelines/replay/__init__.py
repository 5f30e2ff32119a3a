"""History run again: proved, rebuilt, or decided under other parameters."""

from pipelines.replay.rebuild import Rebuilt, rebuild
from pipelines.replay.verification import Verified, verify
from pipelines.replay.what_if import WhatIf, what_if

__all__ = ["Rebuilt", "Verified", "WhatIf", "rebuild", "verify", "what_if"]
