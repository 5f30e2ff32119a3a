"""The demo's programs: the job and the services, each a process with its log, none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parent.parent
# The job ends after its running epoch; one whose JVM is still starting takes longer and is killed.
STOP_TIMEOUT_S = 20.0
# The job lives for a minute: without the slow compiler it needs half the CPU time (measured).
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -Djava.io.tmpdir='{temp}'"


class DemoError(Exception):
    """The demo cannot go on; the text says why and names the log."""


class StopError(Exception):
    """Someone asked the demo to stop."""


class Program:
    """One process, the leader of its own group, so that Ctrl-C reaches the demo alone."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log: Path, temp: Path):
        self.name = name
        self.log = log

        # All that Python, Spark and their JVM call temporary goes with the demo.
        java_options = (
            f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {_JAVA_OPTIONS.format(temp=temp)}"
        )
        folders = {
            "TMPDIR": str(temp),
            "SPARK_LOCAL_DIRS": str(temp),
            "JAVA_TOOL_OPTIONS": java_options.strip(),
        }

        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, **folders, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """Return the exit code, -9 after kill -9; None while it runs."""
        return self._process.poll()

    def was_killed(self) -> bool:
        """Return whether it died as the demo wanted. Errors: DemoError when it ended otherwise."""
        if self.code is not None and self.code != -signal.SIGKILL:
            self.fail()
        return self.code is not None

    def check_runs(self) -> None:
        """Errors: DemoError when it has ended."""
        if self.code is not None:
            self.fail()

    def fail(self) -> None:
        """Raise what is known about a program that ended although it should not."""
        tail = "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-15:])
        raise DemoError(f"{self.name} ended with code {self.code}; the end of {self.log}:\n{tail}")

    def terminate(self) -> None:
        """Ask it to end."""
        if self.code is None:
            self._process.terminate()

    def end(self, deadline: float) -> None:
        """Wait for its end and its children's until the deadline (monotonic s), then kill them."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(deadline - time.monotonic(), 0.1))
        # The job's JVM ends some moments after it.
        while self._signal_group(0) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def _signal_group(self, number: int) -> bool:
        """Send a signal (0: none) to the process and its children; say whether there is one."""
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True


class Stop:
    """Note SIGINT, SIGTERM and SIGHUP, so that they act between steps and never within one."""

    def __init__(self) -> None:
        self.number = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    @property
    def name(self) -> str:
        """Name the signal that came."""
        return signal.Signals(self.number).name

    def check(self) -> None:
        """Errors: StopError when a signal came."""
        if self.number:
            raise StopError(f"stopped by {self.name}")

    def _note(self, number: int, _frame: object) -> None:
        self.number = number


class Programs:
    """Start programs; on leaving, however that comes about, end them all."""

    def __init__(self, logs: Path, temp: Path) -> None:
        self._logs = logs
        self._temp = temp
        self._started: list[Program] = []

    def start(self, name: str, module: str, *arguments: str) -> Program:
        """Start `python -m module`; its output goes to the log of that name."""
        log = self._logs / f"{name.replace(' ', '-')}.log"
        program = Program(name, module, arguments, log, self._temp)
        self._started.append(program)
        return program

    def __enter__(self) -> Programs:
        """Nothing runs yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all programs, the last started first."""
        for program in reversed(self._started):
            program.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for program in reversed(self._started):
            program.end(deadline)
