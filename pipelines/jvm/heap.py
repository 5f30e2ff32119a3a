"""The heap of the JVMs that land: the driver's own on a local master, else an executor's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.jvm.cluster import is_local
from pipelines.jvm.spark_private import jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXECUTOR_MEMORY = "1g"  # Spark's default


@dataclass(frozen=True)
class LandingHeap:
    """The heap of one JVM in bytes, and the number of its tasks. Default: those of a local job."""

    bytes: int = 768 * 1024 * 1024
    tasks: int = 2


def landing_heap(spark: SparkSession) -> LandingHeap:
    """Returns the heap for landing in each JVM, and the number of tasks that run there at once.

    Without spark.executor.cores an executor can have all cores of the cluster.
    """
    context = spark.sparkContext
    jvm = jvm_of(spark)
    if is_local(str(context.master)):
        return LandingHeap(
            int(jvm.java.lang.Runtime.getRuntime().maxMemory()), context.defaultParallelism
        )

    conf = context.getConf()
    memory = conf.get("spark.executor.memory", _EXECUTOR_MEMORY) or _EXECUTOR_MEMORY
    mebibytes = int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsMb(memory))

    cores = int(conf.get("spark.executor.cores") or context.defaultParallelism)
    cores_a_task = int(conf.get("spark.task.cpus") or 1)
    return LandingHeap(mebibytes * 1024 * 1024, max(1, cores // cores_a_task))
