"""The S3 server that we start: it keeps its data and its keys, and leaves nothing behind."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipelines.local_server.ports import is_listening
from pipelines.local_server.server import HOST
from pipelines.local_store.store import Keys, Store, StoreError
from tests.support.store import Bucket, make_bucket, need


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def numbers_of(bucket: Bucket, table: str = "table") -> list[int]:
    found = DeltaTable(f"{bucket.uri}/{table}", storage_options=bucket.options)
    return sorted(found.to_pyarrow_table()["n"].to_pylist())


def test_table_on_the_store_is_read_back(bucket: Bucket) -> None:
    for number in (1, 2):
        write_deltalake(
            f"{bucket.uri}/table", rows(number), mode="append", storage_options=bucket.options
        )
    assert numbers_of(bucket) == [1, 2]
    assert len(list((bucket.folder / "table" / "_delta_log").glob("*.json"))) == 2


def test_who_has_another_secret_is_refused(bucket: Bucket) -> None:
    options = bucket.options | {"AWS_SECRET_ACCESS_KEY": "another"}
    with pytest.raises(OSError, match=r"403|SignatureDoesNotMatch|denied") as caught:
        write_deltalake(f"{bucket.uri}/table", rows(1), storage_options=options)
    assert "another" not in str(caught.value)
    assert not (bucket.folder / "table").exists()


def test_data_keys_and_port_survive_restart_and_kill_and_are_released(tmp_path: Path) -> None:
    need("store")
    with Store(tmp_path) as store:
        bucket = make_bucket(store, "kept")
        write_deltalake(f"{bucket.uri}/table", rows(1), storage_options=bucket.options)
        store.kill()
        assert not store.is_running()
        store.start()
        assert store.endpoint == bucket.endpoint
        assert numbers_of(bucket) == [1]
    assert not is_listening(HOST, store.port)
    with Store(tmp_path, port=store.port) as again:
        assert again.keys == store.keys
        assert numbers_of(bucket) == [1]


def test_secrets_are_the_owners_alone_and_in_no_print(tmp_path: Path) -> None:
    need("store")
    with Store(tmp_path) as store:
        secret = store.keys.secret_access_key
        assert secret not in repr(store.keys)
        holding = [
            path
            for path in tmp_path.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        ]
    assert len(holding) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}


def test_given_keys_are_used_and_kept_in_no_file_of_their_own(tmp_path: Path) -> None:
    need("store")
    with Store(tmp_path, keys=Keys("mine", "my-secret")) as store:
        bucket = make_bucket(store, "mine")
        write_deltalake(f"{bucket.uri}/table", rows(1), storage_options=bucket.options)
        assert numbers_of(bucket) == [1]
    assert not (tmp_path / "secret_access_key").exists()


def test_taken_port_is_one_sentence(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"^port {store.port} on {HOST} cannot be used"):
        Store(tmp_path, port=store.port).start()


@pytest.mark.parametrize("name", ["a", "Upper", "dot.ted", "-dash", "../out", ""])
def test_bucket_of_a_wrong_name_is_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^bucket '.*': 3 to 63 small letters"):
        Store(tmp_path).create_bucket(name)
    assert list(tmp_path.iterdir()) == []


def test_a_data_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"^the data folder .*s3 cannot be written \(Not a"):
        Store(tmp_path / "file" / "s3").create_bucket("orders")


def test_buckets_of_two_tests_do_not_meet(
    store: Store, bucket: Bucket, unique: Callable[[str], str]
) -> None:
    other = make_bucket(store, unique("bucket"))
    write_deltalake(f"{bucket.uri}/table", rows(1), storage_options=bucket.options)
    assert not DeltaTable.is_deltatable(f"{other.uri}/table", storage_options=other.options)
