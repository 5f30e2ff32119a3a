"""The jar lock: what is missing or broken is found, and the message says what to run."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from pipelines.jvm import ivy, jars
from pipelines.jvm import network as java_network

CONTENT = b"a jar"
JAR = jars.Jar("org.example:thing_2.13:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and a lock with one jar in each set."""
    monkeypatch.setenv("TXLAKE_CACHE", str(tmp_path))
    rows = [{"jar": JAR.coordinates, "sha256": JAR.sha256, "size_bytes": JAR.size_bytes}]
    monkeypatch.setattr(jars, "packaged_toml", lambda _: {"spark": rows, "broker": rows})
    return tmp_path


def put(content: bytes) -> None:
    """Put a file where the jar belongs."""
    JAR.path.parent.mkdir(parents=True)
    JAR.path.write_bytes(content)


def test_every_jar_of_the_lock_is_in_the_cache_and_whole() -> None:
    assert jars.verify() == len({jar.sha256 for name in jars.JAR_SETS for jar in jars.locked(name)})


def test_lock_names_each_jar_once_with_a_fixed_version() -> None:
    for name in jars.JAR_SETS:
        found = [jar.coordinates.rpartition(":") for jar in jars.locked(name)]
        assert len({artifact for artifact, _, _ in found}) == len(found)
        assert all(version[0].isdigit() for _, _, version in found)


def test_lock_holds_what_is_wanted() -> None:
    wanted = jars.packaged_toml("jars.toml")
    for name in jars.JAR_SETS:
        artifacts = {jar.coordinates.rpartition(":")[0] for jar in jars.locked(name)}
        assert {text.rpartition(":")[0] for text in wanted[name]["wanted"]} <= artifacts


def test_spark_jars_are_those_of_the_installed_python_packages() -> None:
    locked = {jar.coordinates for jar in jars.locked("spark")}
    assert set(ivy.wanted_coordinates("spark")) <= locked


def test_missing_jar_names_the_file_the_cache_and_the_command(cache: Path) -> None:
    with pytest.raises(jars.JarError) as caught:
        jars.spark_jars()
    assert str(caught.value) == (
        f"jar thing_2.13-1.0.jar is missing from {cache}: run `txlake jars fetch`"
    )


@pytest.mark.usefixtures("cache")
def test_jar_of_another_size_is_broken_at_the_start() -> None:
    put(CONTENT[:-1])
    with pytest.raises(jars.JarError, match=r"is broken: 4 bytes, expected 5; run `txlake jars"):
        jars.broker_jars()


@pytest.mark.usefixtures("cache")
def test_jar_of_the_same_size_and_other_content_is_found_by_verify() -> None:
    put(b"A jar")
    assert jars.spark_jars() == [JAR.path]
    with pytest.raises(jars.JarError, match=r"is broken: SHA-256 .*; run `txlake jars fetch`"):
        jars.verify()
    assert jars.lacking([JAR]) == [JAR]


@pytest.mark.usefixtures("cache")
def test_whole_jar_is_used_and_not_fetched_again() -> None:
    put(CONTENT)
    assert jars.broker_jars() == [JAR.path]
    assert jars.lacking([JAR, JAR]) == []
    assert ivy.fetch(Path("no-java-is-started")) == 0


def test_fetched_jar_that_is_not_the_locked_one_is_refused(cache: Path) -> None:
    found = cache / "found.jar"
    found.write_bytes(b"A jar")
    with pytest.raises(jars.JarError, match="but the lock says"):
        ivy.accept(JAR, found)
    assert not JAR.path.exists()


def test_trust_store_for_java_holds_what_python_trusts(tmp_path: Path) -> None:
    path = tmp_path / "trusted.p12"
    trusted = java_network.trusted_certificates()
    assert java_network.write_trust_store(path) == bool(trusted)
    if trusted:
        password = java_network.TRUST_STORE_PASSWORD.encode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)  # old roots
            _, _, stored = pkcs12.load_key_and_certificates(path.read_bytes(), password)
        assert len(stored) == len(trusted)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TXLAKE_CACHE": "/a/b"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/txlake"),
        ({"TXLAKE_CACHE": "/a", "XDG_CACHE_HOME": "/x"}, "/a"),
        ({"HOME": "/h"}, "/h/.cache/txlake"),
    ],
)
def test_cache_folder_is_the_named_one_or_the_users(
    environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TXLAKE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert jars.cache_folder() == Path(expected)
