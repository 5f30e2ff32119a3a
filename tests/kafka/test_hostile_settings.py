"""Settings that only Java can refuse: one sentence, before the job runs.

What is seen without Java stands in tests/unit/pipelines/test_hostile_settings.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.errors import StartError
from pipelines.kafka_client.java_config import validate_with_java
from pipelines.settings import parse
from tests.kafka.test_cli import ROOT, TXLAKE
from tests.support.class_archive import QUICK_JAVA, archive_options
from tests.support.wait import DEADLINE_S

# A line of [spark], what Java is told besides | words of the sentence
WRONG = [
    ('"spark.serializer" = "no.such.Class"', QUICK_JAVA,
     ("Spark does not start", "spark.serializer = 'no.such.Class'")),
    ("", "-XX:NoSuch", ("Spark does not start: Unrecognized VM option 'NoSuch'",)),
]  # fmt: skip


@pytest.mark.parametrize(("line", "options", "words"), WRONG, ids=["a class", "an option"])
def test_a_setting_that_only_java_can_refuse_is_one_sentence(
    tmp_path: Path, line: str, options: str, words: tuple[str, ...]
) -> None:
    conf = tmp_path / "job.toml"
    conf.write_text(
        f'[lake]\npath = "{tmp_path / "lake"}"\n'
        f'[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[spark]\n{line}\n'
    )
    done = subprocess.run(
        [*TXLAKE, "run", "--conf", str(conf)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": f"{archive_options()}{options}"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert "running" not in said
    sentences = [text for text in said.splitlines() if text.startswith("Error: ")]
    sentence = sentences[-1]
    assert [word for word in words if word not in sentence] == [], said


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"check.crcs": "1"}, ("check.crcs", "Invalid value 1")),
        ({"client.dns.lookup": "ALL"}, ("client.dns.lookup", "Invalid value ALL")),
    ],
)
def test_a_client_setting_that_java_reads_otherwise_is_named(
    spark: SparkSession, client: dict[str, str], words: tuple[str, ...]
) -> None:
    values = {"lake": {"path": "l"}, "kafka": {"bootstrap_servers": "h:1"}}
    validate_with_java(spark, parse(values, "test").kafka)
    values["kafka"]["client"] = client  # type: ignore[assignment]
    with pytest.raises(StartError) as error:
        validate_with_java(spark, parse(values, "test").kafka)
    assert [word for word in words if word not in str(error.value)] == []
    assert "\n" not in str(error.value)
