"""Run history again: prove it, rebuild it, or ask what other parameters would have done."""

from pipelines.replay.new_lake import Rebuilt, rebuild
from pipelines.replay.verification import Verified, verify

__all__ = ["Rebuilt", "Verified", "rebuild", "verify"]
