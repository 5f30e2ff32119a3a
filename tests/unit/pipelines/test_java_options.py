"""The driver's JVM has the collector that suits the cores it may use."""

from __future__ import annotations

import os

import pytest

from pipelines.jvm.session import java_options


@pytest.mark.parametrize(
    ("cores", "collector"), [(1, "Serial"), (2, "Serial"), (3, "Parallel"), (64, "Parallel")]
)
def test_few_cores_have_the_serial_collector(
    cores: int, collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    options = java_options().split()
    assert [option for option in options if option.endswith("GC")] == [f"-XX:+Use{collector}GC"]
