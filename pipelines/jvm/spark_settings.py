"""Checks of the settings in [spark], so that a wrong one is a sentence and not a stack trace.

`check_before_jvm` runs before Spark starts. It checks how values are written, that folders can be
used, and that Java starts with its options.
`check_in_jvm` asks a running JVM, which knows the names and types of Spark's own settings.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from pipelines.errors import StartError
from pipelines.jvm.java import java_binary
from pipelines.jvm.spark_private import jvm_of
from pipelines.settings import SPARK, redacted
from txlake._paths import require_meant

if TYPE_CHECKING:
    from pyspark import SparkContext

JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_MEMORY: Final = "spark.driver.memory"
_LOCAL_DIR: Final = "spark.local.dir"
_SIZE: Final = (r"\d+[kmgtKMGT]?[bB]?", "a size like '2g'")
# By setting: a pattern of its values, and these in words.
_PATTERNS: Final = {
    "spark.master": (
        r"local(\[.+\])?|local-cluster\[.+\]|spark://.+:\d+|k8s://.+|yarn",
        "a master like 'local[2]' or 'spark://host:7077'",
    ),
    _MEMORY: _SIZE,
    "spark.executor.memory": _SIZE,
    "spark.submit.deployMode": ("client", "'client'"),
}
_JAVA_TIMEOUT_S: Final = 30
# Lines of Java's output that do not say why it did not start.
_NOISE: Final = re.compile(
    r"(NOTE: )?Picked up |WARNING: |Error: (Could not create|A fatal exception)|"
    r"Error occurred during initialization|.*spark-class: line |\s|$"
)
_REASON: Final = re.compile(r"(Exception|Error)\b")
# The classes of Spark's core that declare its settings, as Java names them. Spark knows a setting
# once the class that declares it is loaded.
_CONFIG_CLASSES: Final = ("package$", "UI$", "Python$", "Network$")


def check_before_jvm(settings: Mapping[str, str]) -> None:
    """Checks the settings that need no JVM. Errors: StartError; JavaError."""
    for key, (pattern, allowed) in _PATTERNS.items():
        if key in settings and not re.fullmatch(pattern, settings[key]):
            raise _setting_error(key, settings[key], f"{allowed} is allowed")

    if _LOCAL_DIR in settings:
        for folder in settings[_LOCAL_DIR].split(","):
            _require_folder(folder.strip(), settings[_LOCAL_DIR])

    if {JAVA_OPTIONS, _MEMORY} & settings.keys():
        _require_java_starts(settings)


def _require_folder(folder: str, value: str) -> None:
    try:
        require_meant(folder)
        Path(folder).mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)

    if reason:
        raise _setting_error(_LOCAL_DIR, value, f"{reason}; a folder that can be written is needed")


def _require_java_starts(settings: Mapping[str, str]) -> None:
    """Starts Java with the driver's options, only to check them: that takes a tenth of a second."""
    value = settings.get(JAVA_OPTIONS, "")
    try:
        options = shlex.split(value)
    except ValueError as error:
        raise _setting_error(JAVA_OPTIONS, value, str(error)) from None

    if _MEMORY in settings:
        options.append(f"-Xmx{settings[_MEMORY]}")

    try:
        done = subprocess.run(
            [str(java_binary()), *options, "-version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_JAVA_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise StartError(
            f"Java does not start within {_JAVA_TIMEOUT_S} s with "
            f"{redacted(SPARK, JAVA_OPTIONS, shlex.join(options))!r}"
        ) from None

    if done.returncode:
        named = {key: settings[key] for key in (JAVA_OPTIONS, _MEMORY) if key in settings}
        reason = java_reason(done.stderr.splitlines())
        raise StartError(f"Java does not start: {reason}; see [spark] {_settings_text(named)}")


def java_reason(output_lines: Iterable[str]) -> str:
    """Returns in one line why a Java did not start, from its output; empty if unknown."""
    lines = [" ".join(line.split()) for line in output_lines if not _NOISE.match(line)]
    reasons = [line for line in lines if _REASON.search(line)]

    return reasons[0] if reasons else "; ".join(lines)


def check_in_jvm(context: SparkContext, settings: Mapping[str, str]) -> None:
    """Checks the values of settings that Spark would read later or never. Errors: StartError.

    A setting that this Spark does not know is not checked: libraries have their own.
    """
    from pyspark.errors import PySparkException

    if not settings:
        return

    jvm = jvm_of(context)
    spark = jvm.org.apache.spark
    for name in _CONFIG_CLASSES:
        jvm.java.lang.Class.forName(f"org.apache.spark.internal.config.{name}")

    for key, value in settings.items():
        try:
            if key.startswith("spark.sql."):
                spark.sql.internal.SQLConf().setConfString(key, value)
                continue

            entry = spark.internal.config.ConfigEntry.findEntry(key)
            if entry is not None:
                spark.SparkConf(False).set(key, value).get(entry)
        except (Py4JError, PySparkException) as error:
            raise _setting_error(key, value, java_cause(error)) from error


def start_error(
    error: BaseException, settings: Mapping[str, str], output_lines: Iterable[str]
) -> StartError:
    """Returns why Spark did not start, with the settings that its reason names.

    Input: `output_lines`: the output of a JVM that has ended before its first request.
    """
    # PySpark then says only that the JVM has ended; why, is in the JVM's own output.
    is_ended_jvm = "JAVA_GATEWAY_EXITED" in str(error)
    cause = (java_reason(output_lines) if is_ended_jvm else "") or java_cause(error)

    named_settings = {
        key: value
        for key, value in settings.items()
        if key in cause or (len(value) > 1 and value in cause)
    }

    for key, value in named_settings.items():
        cause = _redact(cause, key, value)

    return StartError(
        f"Spark does not start: {cause}; see [spark] {_settings_text(named_settings)}".rstrip()
    )


def java_cause(error: BaseException) -> str:
    """Returns the innermost reason of a Java exception, in one line."""
    while getattr(error, "_cause", None) is not None:  # of PySpark's; some of them have no Java
        error = error._cause  # type: ignore[attr-defined]

    # Of Py4J's errors, and of those that PySpark makes of them.
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()

    text = str(error) if java is None else str(java.toString())
    first_line = text.split("\n")[0]
    return " ".join(first_line.split())


def _setting_error(key: str, value: str, why: str) -> StartError:
    return StartError(f"[spark] {_settings_text({key: value})}: {_redact(why, key, value)}")


def _settings_text(settings: Mapping[str, str]) -> str:
    """Returns settings as an error shows them."""
    return ", ".join(f"{key} = {redacted(SPARK, key, value)!r}" for key, value in settings.items())


def _redact(text: str, key: str, value: str) -> str:
    """Returns a text with the value of a setting as it can be shown."""
    return text.replace(value, redacted(SPARK, key, value)) if value else text
