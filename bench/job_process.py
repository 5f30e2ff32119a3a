"""The real job as a process: `txlake run` on a lake and topics of its own."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.settings import Settings
from storage.lake.lake import Lake
from tests.support.processes import Process

STREAMING = "running; owner"
_LANDED = re.compile(rb"epoch \d+: (\d+) records? landed")
_POLL_S = 0.05
_END_TIMEOUT_S = 60.0


class BenchError(Exception):
    """A figure cannot be measured; the text says why."""


def toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Write settings as a file of `txlake run`; JSON texts, numbers and booleans are TOML too.

    A section within a section, as [lake.store], is a mapping among its values.
    """
    lines = []
    for section, values in sections.items():
        own = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
        lines.append(f"[{section}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in own.items()]
        inner = {f"{section}.{key}": values[key] for key in values if key not in own}
        if inner:
            lines.append(toml(inner))
    return "\n".join(lines) + "\n"


class JobProcess:
    """A running job, in a block; at its end it is stopped in good order.

    Input: `module` is what runs in place of `pipelines` (the profiler's).
    """

    def __init__(
        self,
        settings: Settings,
        conf: Path,
        temp: Path,
        *,
        module: str = "pipelines",
        arguments: tuple[str, ...] = ("run",),
    ) -> None:
        self.settings = settings
        self.lake = Lake(settings.lake.location())
        self.conf, self._temp, self._module, self._arguments = conf, temp, module, arguments
        self._process: Process | None = None
        self._read = 0
        self._landed = 0
        self.epochs = 0  # with records, by what `landed` has read
        self.launched_at = 0.0

    @property
    def group(self) -> int:
        """Return its process group, Python and its JVM; the driver's Python is its leader."""
        return self.process.pid

    @property
    def process(self) -> Process:
        """Return the process.

        Errors: BenchError when it was not started.
        """
        if self._process is None:
            raise BenchError("the job was not started")
        return self._process

    def __enter__(self) -> JobProcess:
        self.launched_at = time.time()
        arguments = [*self._arguments, "--conf", str(self.conf)]
        log = self.conf.with_suffix(".log")
        log.unlink(missing_ok=True)
        self._process = Process(self._module, arguments, log, self._temp, is_short_lived=False)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.process.terminate()
            self.process.wait(_END_TIMEOUT_S)
        finally:
            self.process.end()

    def landed(self) -> int:
        """Return how many records its epochs have landed, by what it says."""
        with self.process.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        landed = [int(number) for number in _LANDED.findall(whole)]
        self._landed += sum(landed)
        self.epochs += sum(number > 0 for number in landed)
        return self._landed

    def wait_until_landed(self, records: int, timeout_s: float) -> None:
        """Wait until so many records are landed and their epochs committed."""
        self.wait_for(lambda: self.landed() >= records, f"{records} records landed", timeout_s)

    def wait_until_streaming(self, timeout_s: float = 120.0) -> None:
        """Wait until its stream has been started."""
        self.wait_for(lambda: self.process.has_said(STREAMING), STREAMING, timeout_s)

    def wait_for(self, is_met: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Wait for something the job does.

        Errors: BenchError: it ended, or the time is up.
        """
        deadline = time.monotonic() + timeout_s

        while not is_met():
            if self.process.code is not None:
                raise BenchError(
                    f"the job ended with code {self.process.code}: {self.process.last_line()}"
                )

            if time.monotonic() > deadline:
                raise BenchError(
                    f"not within {timeout_s:.0f} s: {what}; {self.landed()} records landed; "
                    f"{self.process.last_line()}"
                )

            time.sleep(_POLL_S)
