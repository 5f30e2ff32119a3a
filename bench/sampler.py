"""Where the driver's Python spends its time: look at every thread's stack many times a second.

Writes `stacks.txt` (one line a stack, `frame;frame count`: what flame graph tools read) and
`top.txt` (functions by how often they were on a stack, and at its top). What waits in native code
(Spark by py4j, delta-rs, DuckDB, Kafka) shows as the Python line that called it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

_PAUSE_S = 0.01
_DEPTH_MAX = 60
_TOP = 60
# Threads that only wait for others.
_WAITING = (
    "threading.py:wait",
    "selectors.py:select",
    "socket.py:accept",
    "queue.py:get",
    "thread.py:_worker",
    "sampler.py:_run",
    "clientserver.py:run",
    "java_gateway.py:run",
)


class Sampler:
    """Sample all threads of this process for the length of a block."""

    def __init__(self, into: Path, pause_s: float = _PAUSE_S) -> None:
        self._into, self._pause_s = into, pause_s
        self._stacks: Counter[str] = Counter()
        self._looks = 0
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._into.mkdir(parents=True, exist_ok=True)
        lines = [f"{stack} {count}" for stack, count in self._stacks.most_common()]
        (self._into / "stacks.txt").write_text("\n".join(lines) + "\n", "utf-8")
        (self._into / "top.txt").write_text(self._top(), "utf-8")

    def _run(self) -> None:
        own = threading.get_ident()
        while not self._ended.is_set():
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                stack = _stack(frame)
                if ident != own and not stack[-1].startswith(_WAITING):
                    name = names.get(ident, "unknown").rstrip("-_0123456789")
                    self._stacks[";".join((name, *stack))] += 1
            self._looks += 1
            time.sleep(self._pause_s)

    def _top(self) -> str:
        """Return the functions that were most often on a stack, in s, and at its top."""
        on_stack: Counter[str] = Counter()
        at_top: Counter[str] = Counter()
        for stack, count in self._stacks.items():
            frames = stack.split(";")
            at_top[frames[-1]] += count
            for frame in set(frames):
                on_stack[frame] += count

        # A look waits for Python's lock: they are further apart than the pause.
        second = (time.monotonic() - self._began) / max(self._looks, 1)

        lines = [
            f"{self._looks} looks, {second * 1000:.0f} ms apart",
            "",
            "   on a stack    at its top   (s, of all threads)",
        ]
        lines += [
            f"{count * second:13.2f} {at_top[frame] * second:13.2f}   {frame}"
            for frame, count in on_stack.most_common(_TOP)
        ]
        return "\n".join(lines) + "\n"


def _stack(frame: FrameType | None) -> list[str]:
    """Return a thread's frames, the outermost first: file, function and line."""
    frames: list[str] = []
    while frame is not None and len(frames) < _DEPTH_MAX:
        code = frame.f_code
        frames.append(f"{Path(code.co_filename).name}:{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return frames[::-1]
