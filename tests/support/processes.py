"""The processes of chaos and benchmark runs: started, killed in several ways, none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from pipelines.local_server.parent_watch import with_parent_watch
from tests.support.class_archive import QUICK_JAVA, archive_options, is_test_run

ROOT = Path(__file__).parents[2]
_JAVA_OPTIONS = "-XX:-UsePerfData -Djava.io.tmpdir="


class Process:
    """`python -m module`, the leader of its own group, with its own log.

    Input: `variables` of its environment beside this process's.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        temp: Path,
        *,
        is_short_lived: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        is_quick = is_short_lived or is_test_run()  # what a test of bench/ measures says nothing
        quick = (f"{QUICK_JAVA} " if is_quick else "") + archive_options()
        java_options = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {quick}{_JAVA_OPTIONS}{temp}"

        environment = {
            **{key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            "TMPDIR": str(temp),
            "SPARK_LOCAL_DIRS": str(temp),
            "JAVA_TOOL_OPTIONS": java_options.strip(),
            "PYTHONUNBUFFERED": "1",
            **(variables or {}),
        }

        command = [sys.executable, "-m", module, *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                with_parent_watch(command, with_group=True),
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """The process id, which is its group's too."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, -9 after kill -9; None while it runs."""
        return self._process.poll()

    def has_said(self, *texts: str) -> bool:
        """Returns whether these texts stand in its log, in this order."""
        said = self.log.read_text("utf-8", "replace")
        at = 0
        for text in texts:
            at = said.find(text, at)
            if at < 0:
                return False
        return True

    def last_line(self) -> str:
        """Returns the last line of its log."""
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else ""

    def kill(self, whom: str = "all") -> None:
        """Kills by SIGKILL the `python` process alone, its `jvm` alone, or `all` of the group."""
        if whom == "all":
            self._signal_group(signal.SIGKILL)
        elif whom == "python":
            self._process.kill()
        else:
            for pid in self._jvms():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Sends a signal to all of the group."""
        self._signal_group(number)

    def wait(self, timeout_s: float) -> int | None:
        """Waits for its end. Output: its exit code; None when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def terminate(self) -> None:
        """Asks it to end."""
        if self.code is None:
            self._process.terminate()

    def end(self) -> None:
        """Kills what is left of the group."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _jvms(self) -> Iterator[int]:
        """Returns the Java processes of the group."""
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                name, _, rest = path.read_text().rpartition(")")
                if name.endswith("(java") and int(rest.split()[2]) == self._process.pid:
                    yield int(path.parent.name)


def kill_children(pid: int) -> None:
    """Kill all processes below one; a process that has just ended needs no kill."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def is_suspended(pid: int) -> bool:
    """Returns whether all threads of a process are suspended: the last of them acts until then."""
    return all(_state(task) == "T" for task in Path(f"/proc/{pid}/task").iterdir())


def _state(task: Path) -> str:
    """Returns the state of a thread, as Linux tells it; T is suspended."""
    try:
        return (task / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""
