"""The Spark session of a job: its jars, its settings, and its JVM, which shares the lake's lock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError

from pipelines.errors import JvmError
from pipelines.jvm import spark_private
from pipelines.jvm.arrow_memory import keep_freed_pages
from pipelines.jvm.cluster import JVM_OPTIONS, cluster_conf
from pipelines.jvm.jars import class_path
from pipelines.jvm.java import java_home
from pipelines.jvm.java_log import JavaLog
from pipelines.jvm.spark_settings import (
    JAVA_OPTIONS,
    check_before_jvm,
    check_in_jvm,
    start_error,
)
from pipelines.samples import CONF_FOLDER
from pipelines.settings import SPARK

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

# What py4j raises where the JVM has ended: an error of its own, from the next call on the socket's.
JVM_LOST = (Py4JError, OSError)
# `query.stop()` while Python runs can overflow the stream thread's stack.
_JAVA_OPTIONS = (
    "-Xss16m -Xmn192m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=40 "
    f"{JVM_OPTIONS} -Djava.net.preferIPv4Stack=true"
)
# On so few cores the threads of a parallel collector wait for each other (DECISIONS.md 3).
_SERIAL_CORES: Final = 2
_CLASS_PATH: Final = "spark.driver.extraClassPath"
# Settings that are appended to ours instead of replacing them, and their separators.
_ADDED: Final = {JAVA_OPTIONS: " ", _CLASS_PATH: ":"}
# Without SPARK_CONNECT_MODE each look at the session tries to import a module that is not there,
# under that module's lock. A run of the tests hung there: the lock's owner was a thread that had
# ended (Python 3.11.7).
_ENVIRONMENT: Final = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONNECT_MODE": "0"}


def defaults() -> dict[str, str]:
    """Returns the settings of conf/spark-defaults.conf."""
    lines = (CONF_FOLDER / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(maxsplit=1) for line in lines if line.strip() and line[0] != "#")
    return {key: value.strip() for key, value in pairs}


def start_session(
    app_name: str,
    settings: dict[str, str] | None = None,
    lock_fds: tuple[int, ...] = (),
    *,
    is_quiet: bool = False,
    is_logged: bool = False,
) -> SparkSession:
    """Returns the process's one Spark session; starts it if there is none.

    Input: `settings` win over conf/spark-defaults.conf; `lock_fds` are inherited by the JVM, so
    that a lock on them is free only when both processes are dead; `is_quiet`: the JVM's stderr is
    dropped; `is_logged`: it goes into our log.
    Errors: JavaError, JarError; StartError if the master's host is not known here, or Spark does
    not take a setting. `spark.jars` and driver options count only for the first session of a
    process.
    """
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    keep_freed_pages()
    if spark_private.has_context():
        return SparkSession.builder.getOrCreate()

    overrides = settings or {}
    check_before_jvm(overrides)
    conf = _conf_of(overrides)
    conf.setAppName(app_name)
    spark_private.silence_py4j()

    java_log = JavaLog() if is_logged else None
    try:
        with java_log or nullcontext():
            log_fd = None if java_log is None else java_log.fd
            stderr = subprocess.DEVNULL if is_quiet else log_fd
            gateway = spark_private.launch_jvm(_launch_conf(conf, overrides), lock_fds, stderr)

        context = SparkContext(conf=conf, gateway=gateway)
        check_in_jvm(context, overrides)
    except (Py4JError, PySparkException) as error:
        output_lines = () if java_log is None else java_log.first_lines()
        raise start_error(error, overrides, output_lines) from error

    context.setLogLevel("WARN")
    spark_private.silence_accumulators(context)

    return SparkSession(context)


def _conf_of(overrides: Mapping[str, str]) -> SparkConf:
    """Returns Spark's settings: ours, and `overrides`. Errors: JavaError, JarError, StartError."""
    from pyspark import SparkConf

    conf = SparkConf()

    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has made the JVM, with its own
        os.environ["JAVA_HOME"] = str(java_home())
        os.environ.pop("SPARK_HOME", None)
        # The class path serves from the start; `spark.jars` would copy each jar for the session.
        conf.set(_CLASS_PATH, class_path(["spark"]))
        conf.set(JAVA_OPTIONS, java_options())

        conf.setIfMissing("spark.master", "local[2]")
        master = overrides.get("spark.master", "local[2]")
        conf.setAll([*defaults().items(), *cluster_conf(master).items()])

    conf.set("spark.hadoop.fs.permissions.umask-mode", f"{current_umask():03o}")

    for key, value in overrides.items():
        is_added = key in _ADDED and conf.contains(key)
        conf.set(key, f"{conf.get(key)}{_ADDED[key]}{value}" if is_added else value)
    return conf


def _launch_conf(conf: SparkConf, overrides: Mapping[str, str]) -> SparkConf:
    """Returns the settings that the JVM is started with.

    PySpark writes them into the JVM's command line, which everybody on the machine can read.
    Settings that can be secret are not among them: the Spark context gets them through the JVM's
    socket.
    """
    from pyspark import SparkConf

    launch = SparkConf()
    hidden = {key for key in overrides if not SPARK.is_harmless(key)}
    launch.setAll([(key, value) for key, value in conf.getAll() if key not in hidden])
    return launch


def current_umask() -> int:
    """Returns this process's umask, which Hadoop does not heed: it has one of its own."""
    umask = os.umask(0o077)  # it can only be read by setting it
    os.umask(umask)
    return umask


def java_options() -> str:
    """Returns the options that the driver's JVM needs."""
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    collector = "-XX:+UseSerialGC" if cores <= _SERIAL_CORES else "-XX:+UseParallelGC"
    log_settings = (CONF_FOLDER / "log4j2.properties").as_uri()  # a space would part the options
    return f"{collector} {_JAVA_OPTIONS} -Dlog4j2.configurationFile={log_settings}"


def listen_for_callbacks(spark: SparkSession) -> None:
    """Opens the port on which Spark calls this process, before the process opens much else.

    py4j waits there with `select`, which takes no file beyond the 1,024th of a process: a stream
    that began while a lake's files were being read would wait for ever.
    """
    spark_private.open_callback_port(spark)


def jvm_pid(spark: SparkSession) -> int:
    """Returns the number of the session's JVM as a process."""
    return int(spark_private.jvm_of(spark).java.lang.ProcessHandle.current().pid())


def jvm_has_ended(spark: SparkSession) -> bool:
    """Returns whether the session's JVM is a child of this process that has ended.

    It asks the system, not the JVM: cheap, and correct at once. Under spark-submit the JVM is no
    child; there a call that fails shows it.
    """
    process = spark_private.jvm_process(spark)
    return process is not None and process.poll() is not None


def reap_jvm_at_its_end(spark: SparkSession) -> None:
    """Lets the system forget the session's JVM as soon as that has ended.

    A Jupyter kernel ends its children first, and waits 28 s for one that has ended and that nobody
    has waited for.
    """
    process = spark_private.jvm_process(spark)
    if process is None:
        return

    name = f"end of JVM {process.pid}"
    if name not in {thread.name for thread in threading.enumerate()}:
        threading.Thread(target=process.wait, name=name, daemon=True).start()


def jvm_error(spark: SparkSession) -> JvmError | None:
    """Returns an error if the session's JVM does not answer any more; None if it does.

    Its failures look as if Kafka were away: a connection is refused.
    """
    try:
        if not jvm_has_ended(spark):
            spark_private.jvm_of(spark).System.nanoTime()
            return None
    except JVM_LOST:
        pass
    return JvmError(
        "the driver's JVM has ended, by a signal, for lack of memory or by a crash: nothing is "
        "lost; start the driver again"
    )
