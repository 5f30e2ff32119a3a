"""The operator's command line in tests: run a command, look at what it says. No Kafka is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from pipelines.cli.main import main
from pipelines.settings import Settings


def write_conf(folder: Path) -> str:
    """Write the settings of a job whose lake is in the folder and whose Kafka nobody reaches."""
    path = folder / "job.toml"
    path.write_text(
        f'[lake]\npath = "{folder / "lake"}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
    )
    return str(path)


def conf_of(settings: Settings, folder: Path, *more: str) -> str:
    """Write what a command needs of a running job's settings, and `more` lines."""
    names = (
        "bootstrap_servers",
        "half_topic",
        "op_topic",
        "schedule_topic",
        "admin_topic",
        "check_topic_prefix",
    )

    lines = [f'[lake]\npath = "{settings.lake.path}"', "[kafka]"]
    lines += [f'{name} = "{getattr(settings.kafka, name)}"' for name in names]

    path = folder / "job.toml"
    path.write_text("\n".join([*lines, *more]) + "\n")
    return str(path)


def txlake(*words: str) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, list(words), prog_name="txlake")


def said(*words: str, code: int = 0) -> str:
    """Run a command that must end with an exit code. Returns what it says."""
    result = txlake(*words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def dry(conf: str, *words: str) -> dict[str, Any]:
    """Run a command that writes, as a dry run. Returns its JSON."""
    output = said(
        *words, "--reason", "why", "--actor", "ada", "--dry-run", "--conf", conf, "-o", "json"
    )
    told: dict[str, Any] = json.loads(output)
    assert (told["offset"], told["result"]) == (None, None)
    return told


def expected(conf: str, *words: str) -> str:
    """Returns what a command that writes expects to come of it."""
    return str(dry(conf, *words)["expected"])
