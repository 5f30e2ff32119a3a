"""A process that ends with its starter, even if that is killed with -9.

Only the starter holds a pipe open, the standard input of a small shell beside the process. At the
end of the pipe the shell kills the process, unless a line has come before. (A child that the
starter creates by a bare `os.fork` holds the pipe open, too.)
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

# `sh` becomes the program; its child kills it unless a line comes before the end of the pipe.
# Descriptor 3: a shell without a terminal gives its background jobs an empty input.
_WATCHED = """exec 3<&0 </dev/null
{{ read -r _ <&3 || kill -9 {whom}; }} >/dev/null 2>&1 &
exec "$@" 3<&-"""


def with_parent_watch(command: Sequence[str], *, with_group: bool = False) -> list[str]:
    """Returns the command that runs another one this way; its standard input must be a pipe.

    Input: `with_group`: the process leads a process group, which is killed with it.
    """
    return ["/bin/sh", "-c", _WATCHED.format(whom="-$$" if with_group else "$$"), "sh", *command]


def stop_parent_watch(process: subprocess.Popen[bytes]) -> None:
    """Ends the watch over a process that has ended: its id can soon be another's."""
    assert process.stdin is not None
    try:
        process.stdin.write(b"done\n")
        process.stdin.close()
    except BrokenPipeError:
        pass  # the watch has ended, too
