"""`txlake spark-submit`: the job, or a replay, by plain spark-submit, with all its parts."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pipelines.cli.option_types import NamedPath
from pipelines.cli.options import conf_of, refuse_if
from pipelines.errors import OperatorError
from pipelines.jvm.cluster import cluster_conf, environment_conf, write_environment
from pipelines.jvm.jars import class_path
from pipelines.jvm.java import java_home
from pipelines.jvm.session import java_options
from pipelines.samples import CONF_FOLDER

_PACKAGES = ("pipelines", "storage", "checker")


def write_zip(path: Path) -> Path:
    """Writes our packages into one zip for --py-files (executors fail with a wheel).

    Errors: OperatorError for a place where no file can be made.
    """
    import txlake

    roots = [Path(__file__).parents[2] / name for name in _PACKAGES]
    roots.append(Path(txlake.__file__).parent)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise OperatorError(f"{path} cannot be written ({error.strerror})") from error

    with opened as archive:
        for root in roots:
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(root.parent))

    return path


def submit_line(
    arguments: Sequence[str],
    archive: Path,
    master: str,
    conf: Mapping[str, str],
    options: Sequence[str],
) -> list[str]:
    """Returns the plain spark-submit command that runs the job, or the command in `arguments`.

    Input: Spark's settings, which win over ours; more options of spark-submit.
    """
    # The program of this environment's pyspark, not another Spark's that is first on PATH.
    program = shutil.which("spark-submit", path=str(Path(sys.executable).parent)) or "spark-submit"
    settings = {**cluster_conf(master, conf.get("spark.driver.host")), **conf}

    return [
        program,
        *("--master", master),
        *("--properties-file", str(CONF_FOLDER / "spark-defaults.conf")),
        *("--driver-class-path", class_path(["spark"])),
        *("--driver-java-options", java_options()),
        *("--py-files", str(archive)),
        *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
        *options,
        str(Path(__file__).parents[1] / "submit.py"),
        *arguments,
    ]


def _parse_pairs(_context: click.Context, _option: click.Parameter, values: Sequence[str]) -> Any:
    pairs = [value.partition("=") for value in values]
    wrong = [key for key, equals, _ in pairs if not equals or not key.startswith("spark.")]

    if wrong:
        raise click.BadParameter(f"{wrong[0]!r}: write spark.NAME=VALUE")
    return {key: value for key, _, value in pairs}


@click.command("spark-submit")
@conf_of("The job's settings.", others=("command",), type=NamedPath(exists=True, dir_okay=False))
@click.option("--standby", is_flag=True, help="As of `txlake run`; with --conf.")
@click.option("--master", default="local[2]", show_default=True)
@click.option(
    "--environment",
    type=NamedPath(exists=True, dir_okay=False),
    help="An archive of `txlake environment` for the executors; without it they have the same "
    "environment, in the same place, as this machine.",
)
@click.option("--python", help="The Python of the executors.  [default: by --environment]")
@click.option("--driver-host", help="Where executors reach this machine.  [default: found]")
@click.option(
    "--spark",
    "spark_conf",
    multiple=True,
    callback=_parse_pairs,
    metavar="KEY=VALUE",
    help="A setting of Spark; can be repeated.",
)
@click.option(
    "--submit-options",
    default="",
    metavar="TEXT",
    help="More options of spark-submit, as in --submit-options '--executor-memory 2g'.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the command, do not run it.")
@click.argument("command", nargs=-1)
def spark_submit(
    conf: str | None,
    standby: bool,
    master: str,
    environment: str | None,
    python: str | None,
    driver_host: str | None,
    spark_conf: dict[str, str],
    submit_options: str,
    only_print: bool,
    command: tuple[str, ...],
) -> None:
    """Run the job by spark-submit, or print the command for it.

    After `--` another COMMAND: `-- replay --lake lake --verify`, `-- backfill --conf FILE`.
    """
    refuse_if(
        {
            "name the job's settings, --conf FILE, or a command after --": (conf is None)
            == (not command),
            "--standby goes with the job: name its settings, --conf FILE": standby and conf is None,
        }
    )

    arguments = command if conf is None else ("--conf", str(Path(conf).absolute()))
    arguments += ("--standby",) if standby else ()

    archive = write_zip(Path(".cache/txlake.zip").absolute())
    settings = {} if driver_host is None else {"spark.driver.host": driver_host}
    if environment is not None:
        settings |= environment_conf(str(Path(environment).absolute()))

    major, minor = sys.version_info[:2]
    executor_python = python or (
        sys.executable if environment is None else f"python{major}.{minor}"
    )
    settings |= {
        "spark.pyspark.python": executor_python,
        "spark.pyspark.driver.python": sys.executable,
    }

    try:
        more = shlex.split(submit_options)
    except ValueError as error:
        raise click.UsageError(f"--submit-options {submit_options}: {error}") from None
    line = submit_line(arguments, archive, master, settings | spark_conf, more)

    # PYTHONSAFEPATH: spark-submit puts the script's folder first, and `pipelines/` has modules
    # that must not be found as top-level names.
    variables = {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": executor_python,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",
    }

    if only_print:
        names = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
        click.echo(f"{names} {shlex.join(line)}")
        return

    inherited = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    os.execvpe(line[0], line, {**inherited, **variables})


@click.command()
@click.argument("file", type=NamedPath(dir_okay=False, path_type=Path))
def environment(file: Path) -> None:
    """Write the packages that executors need into FILE.

    It is an archive for nodes with this machine's platform and minor version of Python, compressed
    (.tar.gz) or not (.tar); our own code goes along with spark-submit.
    """
    written = write_environment(file)
    click.echo(f"{written}: {written.stat().st_size / 1e6:.0f} MB, for --environment")
