"""The driver's JVM has the collector that suits the cores it may use."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipelines.jvm import session
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


def test_a_space_in_the_folder_of_the_settings_parts_no_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "CONF_FOLDER", tmp_path / "a b%20")
    option = shlex.split(java_options())[-1]
    name, _, uri = option.partition("=file://")
    expected = f"{tmp_path}/a b%20/log4j2.properties"
    assert (name, unquote(uri)) == ("-Dlog4j2.configurationFile", expected)
