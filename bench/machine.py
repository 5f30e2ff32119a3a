"""Where and with what a benchmark ran."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "duckdb", "pyarrow", "confluent-kafka")
_ROOT = Path(__file__).parent.parent


def machine() -> dict[str, str | int | float]:
    """Describe the machine."""
    return {
        "processor": _line("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Return the versions of what does the work; Kafka's and Java's too."""
    from pipelines.jvm.jars import jar_paths
    from pipelines.jvm.java import java_binary

    java = subprocess.run([str(java_binary()), "-version"], capture_output=True, text=True)
    paths = jar_paths("broker")
    kafka = next((p.stem for p in paths if p.name.startswith("kafka-clients")), "unknown")
    return {
        "python": platform.python_version(),
        "java": (java.stderr.splitlines() or ["unknown"])[0],
        "kafka": kafka.removeprefix("kafka-clients-"),
        **{name: version(name) for name in _PACKAGES},
    }


def commit() -> str:
    """Return the git commit, marked where the working tree differs from it."""
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],  # noqa: S607
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip() or "no git"


def _line(path: str, key: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return ""
