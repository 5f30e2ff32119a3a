"""A process that does not outlive the one that started it, kill -9 of that included.

A small shell beside it waits for the end of a pipe, its standard input, that only the starter
holds open, and kills it then, unless a line comes first. (A child that the starter makes by a bare
`os.fork` holds the pipe open too.)
"""

from __future__ import annotations

from collections.abc import Sequence

# `sh` becomes the program; its child kills it unless a line comes before the end of the pipe.
# By way of 3: a shell without a terminal gives what runs in its background an empty input.
_GUARDED = """exec 3<&0 </dev/null
{{ read -r _ <&3 || kill -9 {whom}; }} >/dev/null 2>&1 &
exec "$@" 3<&-"""


def guarded(command: Sequence[str], *, with_group: bool = False) -> list[str]:
    """Return the command that runs another one so; start it with a pipe as its standard input.

    Input: `with_group`: it leads a process group, which is killed with it.
    """
    return ["/bin/sh", "-c", _GUARDED.format(whom="-$$" if with_group else "$$"), "sh", *command]
