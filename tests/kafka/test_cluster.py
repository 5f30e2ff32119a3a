"""The job on a real standalone cluster, whose executors have nothing but an archive."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.jvm.cluster import JVM_OPTIONS, cluster_conf, environment_conf, write_environment
from pipelines.local_broker.broker import Broker
from pipelines.local_server.ports import Reservation
from storage.lake.lake import Lake
from storage.verify.run import verify
from tests.kafka.test_cli import ROOT, TXLAKE, lock_is_free, process, write_conf
from tests.support.certificates import Certificate
from tests.support.class_archive import QUICK_JAVA
from tests.support.cluster import BARE_PYTHON, CLUSTER_VARIABLE, WORKERS, Cluster
from tests.support.job import Job, settings_for
from tests.support.kafka_writer import KafkaWriter
from tests.support.operator import said
from tests.support.processes import kill_children
from tests.support.secret_places import of_files, of_processes, of_ui, require_absent
from tests.support.secure_broker import PASSWORD, USER, SecureBroker, secure_broker
from tests.support.store import Bucket
from tests.support.wait import DEADLINE_S, wait_until
from txlake.protocol import COMMIT, ROLLBACK

SPARK_SECRET = "a key that Hadoop is given"

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_environment(tmp_path_factory.mktemp("environment") / "environment.tar")


@pytest.fixture(scope="module")
def compressed_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_environment(tmp_path_factory.mktemp("environment") / "environment.tar.gz")


def submitted(cluster: Cluster, environment: Path, conf: Path) -> list[str]:
    return [
        *TXLAKE,
        "spark-submit",
        "--conf",
        str(conf),
        "--master",
        cluster.master,
        "--environment",
        str(environment),
        "--python",
        BARE_PYTHON,
        "--submit-options",
        "--executor-memory 600m",
        "--spark",
        f"spark.executor.extraJavaOptions={cluster.java_options}",
    ]


def compiles_as_asked(executor: psutil.Process) -> bool:
    options = " ".join(executor.cmdline())
    return -1 < options.find(JVM_OPTIONS) < options.find(QUICK_JAVA)


class Traffic:
    """Transactions, every fifth rolled back, over three topics; bodies of some KB."""

    def __init__(self, wire: KafkaWriter) -> None:
        self.wire = wire
        self.committed: list[bytes] = []
        self._numbers = itertools.count()

    def send(self, count: int) -> None:
        for number in itertools.islice(self._numbers, count):
            body = b"%d:" % number + os.urandom(2_000)
            offset = self.wire.half(f"tx{number}", number % 2, body, topic=f"t{number % 3}")
            is_back = number % 5 == 4
            self.wire.end(ROLLBACK if is_back else COMMIT, offset, queue=number % 2)
            if not is_back:
                self.committed.append(body)


def bodies(job: Job) -> list[bytes]:
    return [row["body"] for n in range(3) for row in job.messages(f"t{n}")]


def limit_files(executor: psutil.Process, bytes_max: int) -> None:
    """Let no process of an executor make a longer file: with some KB it has no more disk."""
    for one in [executor, *executor.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # Spark ends idle Python workers
            one.rlimit(psutil.RLIMIT_FSIZE, (bytes_max, psutil.RLIM_INFINITY))


def kill_one(processes: list[psutil.Process]) -> bool:
    """Kill the first one; returns whether there was one, and had not ended by itself."""
    for chosen in processes[:1]:
        with suppress(psutil.NoSuchProcess):
            chosen.send_signal(signal.SIGKILL)
            return True
    return False


def test_traffic_and_kills_on_a_cluster_lose_nothing_and_double_nothing(
    broker: Broker, tmp_path: Path, unique: Unique, cluster: Cluster, environment: Path
) -> None:
    name = unique("cluster")
    conf = write_conf(broker, tmp_path, name)
    conf.write_text(conf.read_text() + 'deliveries = "executors"\n')
    job = Job(settings_for(broker, tmp_path / "lake", name))
    job.prepare_topics()
    traffic = Traffic(KafkaWriter(job.settings))
    log = tmp_path / "job.log"
    # Between two workers of which one has no disk, chance may choose that one many times in a row.
    command = submitted(cluster, environment, conf)
    command += ["--spark", "spark.task.maxFailures=1000"]

    def all_there() -> bool:
        return len(bodies(job)) >= len(traffic.committed)

    def run_until_delivered(running: subprocess.Popen[bytes], what: str) -> None:
        def is_met() -> bool:
            assert running.poll() is None, log.read_text()
            return all_there()

        wait_until(is_met, what, 300, seen=log.read_text)

    traffic.send(40)
    with process(command, log) as running:
        run_until_delivered(running, "the first transactions")
        victims: list[tuple[str, Callable[[], list[psutil.Process]]]] = [
            ("a Python worker", cluster.python_workers),
            ("a worker daemon", cluster.daemons),
            ("an executor", cluster.executors),
        ]
        for what, found in victims:
            traffic.send(30)
            wait_until(lambda found=found: kill_one(found()), what, seen=log.read_text)
            traffic.send(30)
            run_until_delivered(running, f"all, after {what} was killed")

        # Both have run Python: an executor that still unpacks its archive is lost on a full disk.
        def have_run_python() -> bool:
            traffic.send(10)
            run_until_delivered(running, "all, while the other executor begins")
            return len(cluster.daemons()) == WORKERS

        wait_until(have_run_python, "Python on both executors", seen=log.read_text)
        full, other = cluster.executors()
        assert compiles_as_asked(full), "with our options, then the user's"

        # Wherever Spark puts the next task, its disk is full; then one of the two has room again.
        limit_files(full, 4_096)
        limit_files(other, 4_096)
        traffic.send(10)
        wait_until(
            lambda: "File too large" in log.read_text() + cluster.executor_logs(),
            "a full disk",
            seen=log.read_text,
        )
        limit_files(other, psutil.RLIM_INFINITY)
        run_until_delivered(running, "all, though one worker's disk is full")

        traffic.send(30)
        kill_children(running.pid)
        running.kill()
    wait_until(lambda: lock_is_free(job.lake.path), "the end of the driver")
    traffic.send(30)
    with process(command, log) as running:
        run_until_delivered(running, "all, after the driver was killed")
        running.send_signal(signal.SIGTERM)
        running.wait(DEADLINE_S)
    wait_until(lambda: lock_is_free(job.lake.path), "the end of all its processes")
    assert sorted(bodies(job)) == sorted(traffic.committed)
    report = verify(Lake(job.lake.path))
    assert {f.invariant.name: f.rows for f in report.findings if f.violations} == {}
    work = [dict(row["work"]) for row in job.rows("epochs") if row["state"] == "committed"]
    assert sum(one["landed_tasks"] for one in work) >= 5
    assert sum(one["delivered_tasks"] for one in work) >= 5


def write_secret_conf(
    secure: SecureBroker, own: Certificate, bucket: Bucket, folder: Path, name: str
) -> Path:
    """Write settings of a job that has secrets of a bucket, of Kafka and of Spark, in files."""
    path, secret_file = write_conf(secure, folder, name), folder / "secret_access_key"
    secret_file.write_text(bucket.keys.secret_access_key)
    password_file, own_file = folder / "password", own.write(folder / "own.pem")
    password_file.write_text(PASSWORD)
    spark_file = folder / "encryption_key"
    spark_file.write_text(SPARK_SECRET)
    path.write_text(
        path.read_text()
        .replace(str(folder / "lake"), f"{bucket.uri}/lake")
        .replace(secure.bootstrap_servers, secure.address("SCRAM_SHA_512"))
        + f"""
deliveries = "executors"
checkpoint = "{folder / "checkpoint"}"
[lake.store]
endpoint = "{bucket.endpoint}"
region = "{bucket.options["AWS_REGION"]}"
allow_http = true
access_key_id = "{bucket.keys.access_key_id}"
secret_access_key_file = "{secret_file}"
[kafka.client]
"security.protocol" = "sasl_ssl"
"sasl.mechanisms" = "SCRAM-SHA-512"
"sasl.username" = "{USER}"
"sasl.password_file" = "{password_file}"
"ssl.ca.location" = "{secure.ca_file}"
"ssl.certificate.location" = "{own_file}"
"ssl.key.location" = "{own_file}"
[spark]
"spark.hadoop.fs.s3a.encryption.key_file" = "{spark_file}"
"""
    )
    return path


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureBroker]:
    with secure_broker(tmp_path / "secure") as started:
        yield started


def test_a_lake_in_a_store_is_written_by_a_cluster_and_its_secrets_by_nobody(
    secure: SecureBroker,
    bucket: Bucket,
    tmp_path: Path,
    unique: Unique,
    cluster: Cluster,
    environment: Path,
) -> None:
    name = unique("stored")
    log, events = tmp_path / "job.log", tmp_path / "events"
    own = secure.authority.issue(USER)
    # Of the password the words that no way of quoting changes; of the key a line of its text.
    secrets = (
        bucket.keys.secret_access_key,
        "hidden from all",
        own.key_pem().splitlines()[1],
        SPARK_SECRET,
    )
    assert secrets[1] in PASSWORD
    conf = write_secret_conf(secure, own, bucket, tmp_path, name)
    job = Job(settings_for(secure, bucket.folder / "lake", name))  # it reads the server's files
    job.prepare_topics()
    traffic = Traffic(KafkaWriter(job.settings))
    events.mkdir()
    held = Reservation("127.0.0.1", 0)
    shown = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(held.ports[0]),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
    }
    command = submitted(cluster, environment, conf)
    command += [part for item in shown.items() for part in ("--spark", "=".join(item))]
    with ExitStack() as stack:
        stack.callback(held.release)
        traffic.send(30)
        with process(command, log) as running:

            def all_there() -> bool:
                assert running.poll() is None, log.read_text()
                return len(bodies(job)) >= len(traffic.committed)

            wait_until(all_there, "the first transactions", 300, seen=log.read_text)
            require_absent(secrets, of_processes(running.pid, cluster))
            require_absent(secrets, of_ui(held.ports[0]))
            traffic.send(20)
            wait_until(lambda: kill_one(cluster.executors()), "an executor to kill")
            traffic.send(20)
            wait_until(all_there, "all, after an executor was killed", 300, seen=log.read_text)
            running.send_signal(signal.SIGTERM)
            running.wait(DEADLINE_S)
    assert sorted(bodies(job)) == sorted(traffic.committed)
    assert "all invariants hold" in said("verify", "--conf", str(conf))
    work = [dict(row["work"]) for row in job.rows("epochs") if row["state"] == "committed"]
    assert sum(one["landed_tasks"] for one in work) >= 2
    assert sum(one["delivered_tasks"] for one in work) >= 2
    require_absent(secrets, {"job.log": log.read_bytes()})
    told = of_files(events)
    assert any(b"SparkListenerEnvironmentUpdate" in text for text in told.values())
    require_absent(secrets, told)
    require_absent(secrets, of_files(*cluster.folder.glob("worker-*/apps")))


def test_a_lake_that_executors_do_not_see_is_refused_in_one_sentence(
    broker: Broker, tmp_path: Path, unique: Unique, cluster: Cluster, compressed_environment: Path
) -> None:
    conf = write_conf(broker, tmp_path, unique("unseen"))
    here = tmp_path / "here"
    here.mkdir()
    # To each process this is a folder in the folder where it runs.
    conf.write_text(conf.read_text().replace(str(tmp_path / "lake"), "/proc/self/cwd/lake"))
    log = tmp_path / "job.log"
    with log.open("wb") as output:
        done = subprocess.run(
            submitted(cluster, compressed_environment, conf),
            cwd=here,
            timeout=DEADLINE_S,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    said = log.read_text()
    assert done.returncode != 0
    assert "the lake /proc/self/cwd/lake is not the same place for the executor on " in said, said
    assert "name a lake that all nodes see" in said
    assert "Traceback (most recent call last)" not in said, said
    assert not list((here / "lake").glob("_probe-*"))


@pytest.mark.parametrize(
    "cases",
    [
        "D01 or D10 or D31",  # records of each kind; the others differ in what is decided of them
        pytest.param("D", marks=pytest.mark.soak),
    ],
)
def test_the_vectors_hold_on_a_cluster(
    cluster: Cluster, environment: Path, tmp_path: Path, cases: str
) -> None:
    packages = tmp_path / "txlake.zip"
    from pipelines.cli.spark_submit import write_zip

    write_zip(packages)
    spark: dict[str, Any] = {
        "spark.master": cluster.master,
        **cluster_conf(cluster.master),
        **environment_conf(str(environment)),
        "spark.submit.pyFiles": str(packages),
        "spark.executor.memory": "600m",
        "spark.executor.extraJavaOptions": cluster.java_options,
    }
    ours = {key: value for key, value in os.environ.items() if "XDIST" not in key}
    variables = {**ours, CLUSTER_VARIABLE: json.dumps(spark), "PYSPARK_PYTHON": BARE_PYTHON}
    began = time.time()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/kafka/test_scenarios_real.py",
            "-k",
            cases,
            "--basetemp",
            str(tmp_path / "vectors"),
        ],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-3_000:]
    assert any(path.stat().st_mtime >= began for path in cluster.folder.glob("worker-*/apps/app-*"))
