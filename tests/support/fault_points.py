"""A lake and an asker that say what they are about to do, and crash when told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.epoch.checks import KafkaCheckSender
from storage.files.data_files import DataFile
from storage.files.location import LakeLocation
from storage.lake.lake import Lake

CHECKS_ARE_SENT = "send checks"


class Crash(BaseException):
    """What a test raises in place of a crash."""


class SeenError(Exception):
    """The write happened, but its caller saw an error."""


@dataclass
class FaultPoints:
    """What happens around a write of an epoch.

    Input: `at`: the write that crashes, or its beginning; `mode`: before it, after it, or so that
    its caller sees an error; `take_over`: what another does instead while this one is asleep.
    """

    at: str = ""
    mode: str = ""
    take_over: Callable[[], None] | None = None

    def around(self, name: str, write: Callable[[], Any]) -> Any:
        """Do a write, or crash at it; once."""
        if not self.at or not name.startswith(self.at):
            return write()

        at = self.at
        self.at = ""

        if self.take_over is not None:
            self.take_over()
            return write()

        if self.mode == "crash before":
            raise Crash(name)

        done = write()
        if done == 0:  # it was done before the crash before
            self.at = at
            return done

        raise SeenError(name) if self.mode == "error after" else Crash(name)

    def lake(self, location: str | LakeLocation) -> Lake:
        """Return a lake that is watched, and the driver's: as `txlake run` opens it."""
        return _WatchedLake(location, self)

    def asker(self, *connection: Any) -> KafkaCheckSender:
        """Return an asker that is watched. Input: as of a KafkaCheckSender."""
        return _WatchedAsker(self, *connection)


class _WatchedLake(Lake):
    def __init__(self, location: str | LakeLocation, watch: FaultPoints) -> None:
        super().__init__(location, is_driver=True)
        self._watch = watch

    def create_table(self, table: str) -> None:
        self._watch.around(f"create {table}", lambda: Lake.create_table(self, table))

    def append(self, table: str, rows: pa.Table, epoch: int | None = None) -> int:
        if rows.num_rows == 0:
            return 0
        state = f" {rows['state'][0].as_py()}" if table == "epochs" else ""
        count: int = self._watch.around(
            f"append {table}{state}", lambda: Lake.append(self, table, rows, epoch)
        )
        return count

    def add_files(self, table: str, files: Sequence[DataFile], epoch: int) -> int:
        count: int = self._watch.around(
            f"append {table}", lambda: Lake.add_files(self, table, files, epoch)
        )
        return count


class _WatchedAsker(KafkaCheckSender):
    def __init__(self, watch: FaultPoints, *connection: Any) -> None:
        super().__init__(*connection)
        self._watch = watch

    def ask(self, *questions: Any) -> Any:
        return self._watch.around(CHECKS_ARE_SENT, lambda: KafkaCheckSender.ask(self, *questions))
