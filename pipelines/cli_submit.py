"""`txlake spark-submit`: the job, or a replay, by plain spark-submit, with all that it needs."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import click

from pipelines.java import java_home
from pipelines.session import CONF_FOLDER, java_options
from storage.jars import spark_jars

_PACKAGES = ("pipelines", "storage", "checker")


def write_zip(path: Path) -> Path:
    """Write our packages into one zip for --py-files (executors fail with a wheel)."""
    import txlake

    roots = [Path(__file__).parent.parent / name for name in _PACKAGES]
    roots.append(Path(txlake.__file__).parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for root in roots:
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(root.parent))
    return path


def submit_line(arguments: Sequence[str], archive: Path, master: str) -> list[str]:
    """Give the plain spark-submit command that runs the job, or the command in `arguments`."""
    jars = ":".join(str(jar) for jar in spark_jars())
    # The program of this environment's pyspark, not another Spark's that is first on PATH.
    found = shutil.which("spark-submit", path=str(Path(sys.executable).parent)) or "spark-submit"
    return [
        found,
        *("--master", master),
        *("--properties-file", str(CONF_FOLDER / "spark-defaults.conf")),
        *("--driver-class-path", jars),
        *("--conf", f"spark.executor.extraClassPath={jars}"),
        *("--driver-java-options", java_options()),
        *("--py-files", str(archive)),
        str(Path(__file__).with_name("submit.py")),
        *arguments,
    ]


@click.command("spark-submit")
@click.option("--conf", type=click.Path(exists=True, dir_okay=False), help="The job's settings.")
@click.option("--master", default="local[2]", show_default=True)
@click.option("--print", "only_print", is_flag=True, help="Print the command, do not run it.")
@click.argument("command", nargs=-1)
def spark_submit(conf: str | None, master: str, only_print: bool, command: tuple[str, ...]) -> None:
    """Run the job by spark-submit, or print the command for it.

    After `--` another COMMAND: `-- replay --lake lake --verify`, `-- backfill --conf FILE`.
    """
    if (conf is None) == (not command):
        raise click.UsageError("name the job's settings, --conf FILE, or a command after --")
    arguments = command if conf is None else ("--conf", str(Path(conf).absolute()))
    archive = write_zip(Path(".cache/txlake.zip").absolute())
    line = submit_line(arguments, archive, master)
    # PYTHONSAFEPATH: spark-submit puts the script's folder first, and `pipelines/` has modules
    # that must not be found as top-level names.
    environment = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }
    if only_print:
        names = " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items())
        click.echo(f"{names} {shlex.join(line)}")
        return
    unset = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    os.execvpe(line[0], line, {**unset, **environment})
