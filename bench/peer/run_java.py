"""Become a Java program: `python -m bench.peer.run_java ARGUMENTS`, for tests.support.processes."""

from __future__ import annotations

import os
import sys

from pipelines.jvm.java import java_binary


def main() -> None:
    """Replace this process by Java."""
    java = str(java_binary())
    os.execv(java, [java, *sys.argv[1:]])


if __name__ == "__main__":
    main()
