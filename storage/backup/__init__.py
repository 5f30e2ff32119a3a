"""A lake copied while its job runs: which version of each table, and in which order."""

from storage.backup.copy import Backup, back_up

__all__ = ["Backup", "back_up"]
