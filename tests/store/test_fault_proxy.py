"""The proxy that makes a store fail: each fault happens, and delta-rs comes through it."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from pipelines.local_server.ports import is_listening
from pipelines.local_server.server import HOST
from pipelines.local_store.store import REGION, Store
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import (
    DATA,
    LOG,
    CutBefore,
    CutWithin,
    Fault,
    LostAnswer,
    Request,
    Slow,
    Status,
    Throttle,
    Together,
    What,
)
from tests.support.processes import ROOT
from tests.support.store import Bucket
from tests.support.wait import wait_until

APP = "txlake/test"


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    with FaultProxy(store.port) as running:
        yield running


@pytest.fixture
def far(bucket: Bucket, proxy: FaultProxy) -> Bucket:
    """A bucket behind the proxy."""
    return dataclasses.replace(bucket, endpoint=proxy.endpoint)


def append(bucket: Bucket, *numbers: int) -> None:
    rows = pa.table({"n": pa.array(numbers, pa.int64())})
    uri = f"{bucket.uri}/table"
    write_deltalake(uri, rows, mode="append", storage_options=bucket.options)


def is_appended(bucket: Bucket, *numbers: int) -> bool:
    """Append. Output: whether the store was there."""
    try:
        append(bucket, *numbers)
    except OSError:
        return False
    return True


def opened(bucket: Bucket) -> DeltaTable:
    return DeltaTable(f"{bucket.uri}/table", storage_options=bucket.options)


def numbers_of(bucket: Bucket) -> list[int]:
    return sorted(opened(bucket).to_pyarrow_table()["n"].to_pylist())


@pytest.mark.parametrize(
    ("method", "target", "kind", "key"),
    [
        ("PUT", "/b/t/_delta_log/0.json", "log", "t/_delta_log/0.json"),
        ("GET", "/b/t/part%20one.parquet?x=1", "data", "t/part one.parquet"),
        ("GET", "/b?list-type=2&prefix=t", "list", ""),
        ("GET", "/b/?prefix=t%2F_delta_log", "list", ""),
        ("HEAD", "/b", "bucket", ""),
        ("POST", "/b?delete", "bucket", ""),
    ],
)
def test_request_is_of_a_kind(method: str, target: str, kind: str, key: str) -> None:
    request = Request(method, target)
    assert (request.kind, request.key) == (kind, key)


def test_without_faults_all_is_passed_on_and_counted(far: Bucket, proxy: FaultProxy) -> None:
    append(far, 1)
    before = proxy.traffic()
    append(far, 2)
    table = opened(far)
    passed = proxy.traffic().since(before)
    assert numbers_of(far) == [1, 2]
    # The second append: a data file and a commit, each one PUT.
    assert passed.requests["PUT", "data"] == passed.requests["PUT", "log"] == 1
    assert passed.requests["GET", "log"] > 0
    newest_first = table.get_add_actions().column("size_bytes").to_pylist()
    assert passed.sent_bytes["data"] == newest_first[0]
    assert passed.answers[200] == sum(passed.requests.values()) - passed.answers[404]


@pytest.mark.parametrize(
    "what",
    [Status(500, "InternalError"), Status(503, "SlowDown"), Status(429, "TooMany"), CutBefore()],
    ids=repr,
)
def test_refused_request_is_sent_again(what: What, far: Bucket, proxy: FaultProxy) -> None:
    append(far, 1)
    with proxy.fault(Fault(what, every=3)) as fault:
        for number in (2, 3):
            append(far, number)
        assert numbers_of(far) == [1, 2, 3]
    assert fault.hits >= 3
    assert opened(far).version() == 2


def test_answer_cut_within_its_body_is_read_again(far: Bucket, proxy: FaultProxy) -> None:
    append(far, *range(10_000))
    with proxy.fault(Fault(CutWithin(), "GET", DATA, times=2)) as fault:
        assert numbers_of(far) == list(range(10_000))
    assert fault.hits == 2


def test_slow_store_is_waited_for(far: Bucket, proxy: FaultProxy) -> None:
    append(far, 1)
    began = time.monotonic()
    with proxy.fault(Fault(Slow(0.3), "PUT", LOG)) as fault:
        append(far, 2)
    assert time.monotonic() - began >= 0.3
    assert fault.hits == 1


def test_store_that_throttles_is_asked_again(far: Bucket, proxy: FaultProxy) -> None:
    append(far, 0)
    readers = 8

    def read_at_once() -> bool:
        """Read in several threads."""
        with ThreadPoolExecutor(readers) as pool:
            assert list(pool.map(numbers_of, [far] * readers)) == [[0, 1, 2]] * readers
        return fault.hits > 0

    with proxy.fault(Fault(Throttle(8))) as fault:
        append(far, 1)
        append(far, 2)
        assert numbers_of(far) == [0, 1, 2]
        if fault.hits == 0:  # a slow machine does not make so many requests one after the other
            wait_until(read_at_once, "a second with too many requests")
    assert proxy.traffic().answers[503] == fault.hits


def test_store_that_is_away_refuses_and_comes_back(far: Bucket, proxy: FaultProxy) -> None:
    append(far, 1)
    with proxy.away():
        with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
            probe.connect((HOST, proxy.port))
        before = proxy.traffic()
        # Tried again here, too: delta-rs gives up after some seconds, and a machine can be slower.
        writer = threading.Thread(
            target=wait_until, args=(lambda: is_appended(far, 2), "it is written")
        )
        writer.start()
        writer.join(0.5)
        assert writer.is_alive()
        assert proxy.traffic() == before
    writer.join()
    assert numbers_of(far) == [1, 2]


def write_once(table: DeltaTable, version: int, numbers: list[int]) -> bool:
    """Append on this handle, under a transaction identifier. Output: whether it was accepted."""
    properties = CommitProperties(app_transactions=[Transaction(APP, version)])
    rows = pa.table({"n": pa.array(numbers, pa.int64())})
    try:
        write_deltalake(table, rows, mode="append", commit_properties=properties)
    except CommitFailedError:
        return False
    return True


def test_commit_whose_answer_is_lost_is_there_once(far: Bucket, proxy: FaultProxy) -> None:
    append(far, 0)
    table = opened(far)
    with proxy.fault(Fault(LostAnswer(), "PUT", LOG, times=1)) as fault:
        was_accepted = write_once(table, 7, [1])
    assert fault.hits == 1
    # It was sent again, and met its own commit.
    assert proxy.traffic().answers[412] >= 1
    assert not was_accepted
    found = opened(far)
    assert (found.version(), found.transaction_version(APP)) == (1, 7)
    assert numbers_of(far) == [0, 1]


def test_without_an_identifier_a_commit_whose_answer_is_lost_is_made_twice(
    far: Bucket, proxy: FaultProxy
) -> None:
    append(far, 0)
    with proxy.fault(Fault(LostAnswer(), "PUT", LOG, times=1)):
        append(far, 1)
    assert opened(far).version() == 2
    # Both name one file: who reads the table sees it once, who reads the log sees it twice.
    assert numbers_of(far) == [0, 1]


def test_of_eight_writers_at_one_version_one_wins(far: Bucket, proxy: FaultProxy) -> None:
    rounds, writers = 6, 8
    append(far, 0)
    for version in range(1, rounds + 1):
        handles = [opened(far) for _ in range(writers)]
        before = proxy.traffic()
        with (
            proxy.fault(Fault(Together(writers), "PUT", LOG)),
            ThreadPoolExecutor(writers) as pool,
        ):
            running = [
                pool.submit(write_once, handle, version, [version * 100 + number])
                for number, handle in enumerate(handles)
            ]
            accepted = [one.result() for one in running]
        passed = proxy.traffic().since(before)
        assert passed.requests["PUT", LOG] == writers
        assert passed.answers[412] == writers - 1
        assert accepted.count(True) == 1
        assert version * 100 + accepted.index(True) in numbers_of(far)
    assert len(numbers_of(far)) == 1 + rounds
    assert opened(far).version() == rounds


def test_arrows_requests_are_passed_on_too(far: Bucket, proxy: FaultProxy) -> None:
    there = pa_fs.S3FileSystem(
        access_key=far.keys.access_key_id,
        secret_key=far.keys.secret_access_key,
        endpoint_override=far.endpoint.removeprefix("http://"),
        scheme="http",
        region=REGION,
    )
    path, content = f"{far.name}/part one/file", bytes(range(256)) * 50_000
    with there.open_output_stream(path) as file:
        file.write(content)
    with there.open_input_file(path) as file:
        assert file.read() == content
    names = [info.path for info in there.get_file_info(pa_fs.FileSelector(f"{far.name}/part one"))]
    assert names == [path]
    there.delete_file(path)
    assert not (far.folder / "part one" / "file").exists()
    passed = proxy.traffic()
    assert passed.requests["DELETE", DATA] == 1
    assert passed.received_bytes[DATA] >= len(content)


def test_proxy_ends_with_the_process_that_started_it(store: Store) -> None:
    program = (
        "import sys, time\nfrom tests.support.fault_proxy import FaultProxy\n"
        "with FaultProxy(int(sys.argv[1])) as proxy:\n"
        "    print(proxy.port, flush=True)\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(store.port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert is_listening(HOST, port)
        parent.kill()
    wait_until(lambda: not is_listening(HOST, port), "the end of the proxy")
