"""What only Debian has: a test without it is skipped in one line; under CI it fails."""

from __future__ import annotations

import os
import subprocess

import pytest

from pipelines.jvm.java import java_binary


def require(is_there: bool, otherwise: str) -> None:
    """Skips the test, or the module, if something is missing; under CI it fails.

    Input: `otherwise`: what is missing, its package, and what is not tried.
    """
    if is_there:
        return
    if os.environ.get("TXLAKE_CI"):
        pytest.fail(f"{otherwise}; under CI it has to be there: .ci/run installs it", pytrace=False)
    pytest.skip(otherwise, allow_module_level=True)


def java_with_compiler() -> str:
    """Returns the path of a Java that runs a source file."""
    java = java_binary()
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)

    is_there = "jdk.compiler" in modules.stdout
    require(is_there, "this Java has no compiler (Debian: default-jdk-headless): no source is run")
    return str(java)
