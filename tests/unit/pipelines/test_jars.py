"""The jar lock: what is missing or broken is found, and the message says what to run."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.utils import CryptographyDeprecationWarning

from pipelines.cli import setup
from pipelines.cli.setup import findings
from pipelines.jvm import clone, ivy, jars, java
from pipelines.jvm import network as java_network
from tests.support.operator import said

CONTENT = b"a jar"
JAR = jars.Jar("org.example:thing_2.13:1.0", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
ASKED = jars.Jar("org.example:asked:2.0:whole", hashlib.sha256(b"asked").hexdigest(), 5)
ALL_SETS = (*jars.JAR_SETS, *jars.OPTIONAL_SETS)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and a lock with one jar in each set."""
    monkeypatch.setenv("TXLAKE_CACHE", str(tmp_path))
    rows = [{"jar": JAR.coordinates, "sha256": JAR.sha256, "size_bytes": JAR.size_bytes}]
    asked = [{"jar": ASKED.coordinates, "sha256": ASKED.sha256, "size_bytes": ASKED.size_bytes}]
    lock = {"spark": rows, "broker": rows, "store": asked, "s3": asked}
    monkeypatch.setattr(jars, "packaged_toml", lambda _: lock)
    return tmp_path


def put(content: bytes, jar: jars.Jar = JAR) -> None:
    """Put a file where a jar belongs."""
    jar.path.parent.mkdir(parents=True)
    jar.path.write_bytes(content)


def test_every_jar_of_the_lock_is_in_the_cache_and_whole() -> None:
    fetched = [name for name in ALL_SETS if name == "spark" or jars.is_fetched(name)]
    assert jars.verify() == len({jar.sha256 for name in fetched for jar in jars.locked(name)})


@pytest.mark.parametrize("name", ALL_SETS)
def test_lock_names_each_jar_once_with_a_fixed_version(name: str) -> None:
    found = jars.locked(name)
    parts = [jar.coordinates.split(":") for jar in found]
    assert len({tuple(part[:2]) for part in parts}) == len(found) > 0
    assert all(part[2][0].isdigit() for part in parts)


@pytest.mark.parametrize("name", ALL_SETS)
def test_lock_holds_what_is_wanted_in_the_versions_of_the_installed_packages(name: str) -> None:
    wanted = set(ivy.wanted_coordinates(name))
    assert wanted
    assert wanted <= {jar.coordinates for jar in jars.locked(name)}


def test_s3_brings_no_second_netty_and_not_the_bundle() -> None:
    found = jars.locked("s3")
    assert not [jar.coordinates for jar in found if jar.coordinates.startswith("io.netty:")]
    assert sum(jar.size_bytes for jar in found) < 20 << 20


def test_missing_jar_names_the_file_the_cache_and_the_command(cache: Path) -> None:
    with pytest.raises(jars.JarError) as caught:
        jars.jar_paths("spark")
    assert str(caught.value) == (
        f"jar thing_2.13-1.0.jar is missing from {cache}: run `txlake jars fetch`"
    )


@pytest.mark.usefixtures("cache")
def test_jar_of_another_size_is_broken_at_the_start() -> None:
    put(CONTENT[:-1])
    with pytest.raises(jars.JarError, match=r"is broken: 4 bytes, expected 5; run `txlake jars"):
        jars.jar_paths("broker")


@pytest.mark.usefixtures("cache")
def test_jar_of_the_same_size_and_other_content_is_found_by_verify() -> None:
    put(b"A jar")
    assert jars.jar_paths("spark") == [JAR.path]
    with pytest.raises(jars.JarError, match=r"is broken: SHA-256 .*; run `txlake jars fetch`"):
        jars.verify()
    assert jars.missing_jars([JAR]) == [JAR]


@pytest.fixture
def sets_apart(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a lock whose sets have no jar in common, as the real one."""
    lock = {
        name: [{"jar": f"org.example:{name}:1.0", "sha256": name * 8, "size_bytes": 5}]
        for name in ALL_SETS
    }
    lock["spark"] = [{"jar": JAR.coordinates, "sha256": JAR.sha256, "size_bytes": JAR.size_bytes}]
    monkeypatch.setattr(jars, "packaged_toml", lambda _: lock)
    return cache


@pytest.mark.usefixtures("sets_apart")
def test_of_the_sets_that_were_never_fetched_only_spark_is_missing() -> None:
    assert jars.sets_in_use() == ["spark"]
    with pytest.raises(jars.JarError, match=r"thing_2\.13-1\.0\.jar is missing"):
        jars.verify()

    put(CONTENT)
    assert jars.verify() == 1
    assert "broker" not in said("jars", "verify")
    parts = [finding.part for finding in findings() if finding.part.startswith("jars")]
    assert parts == ["jars: spark"]

    put(b"other", jars.locked("broker")[0])
    with pytest.raises(jars.JarError, match=r"broker-1\.0\.jar is broken"):
        jars.verify()


@pytest.mark.usefixtures("cache")
def test_without_a_clone_what_is_missing_names_what_the_page_of_production_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clone, "_ROOT", tmp_path)
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    monkeypatch.setattr(setup, "PACKAGES", ("no-such-package",))
    java.java_home.cache_clear()

    to_do = {finding.part: finding.to_do for finding in findings() if not finding.is_sound}
    assert to_do.keys() == {"no-such-package", "Java", "jars: spark"}
    assert "make" not in " ".join(to_do.values())
    assert "requirements.txt" in to_do["no-such-package"]
    assert "openjdk-17-jre-headless" in to_do["Java"]
    assert to_do["jars: spark"].endswith("run `txlake jars fetch spark`")

    page = (Path(__file__).parents[3] / "docs" / "production.md").read_text("utf-8")
    for words in ("requirements.txt", "openjdk-17-jre-headless", "txlake jars fetch spark"):
        assert words in page


def test_jars_that_are_fetched_only_when_asked_for_name_their_own_command(cache: Path) -> None:
    put(CONTENT)
    assert ivy.fetch(Path("no-java-is-started")) == 0
    assert jars.verify() == 1
    assert not jars.is_fetched("store")
    with pytest.raises(jars.JarError) as caught:
        jars.jar_paths("store")
    assert str(caught.value) == (
        f"jar asked-2.0-whole.jar is missing from {cache}: run `txlake jars fetch store`"
    )
    put(b"asked", ASKED)
    assert jars.jar_paths("store") == jars.jar_paths("s3") == [ASKED.path]
    assert jars.verify() == 2


@pytest.mark.usefixtures("cache")
def test_whole_jar_is_used_and_not_fetched_again() -> None:
    put(CONTENT)
    assert jars.jar_paths("broker") == [JAR.path]
    assert jars.missing_jars([JAR, JAR]) == []
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


def test_a_class_path_names_the_jars_of_its_sets_or_the_command_that_fetches_them(
    cache: Path,
) -> None:
    put(CONTENT)
    assert jars.class_path(["spark"]) == str(JAR.path)
    with pytest.raises(jars.JarError, match="txlake jars fetch s3"):
        jars.class_path(["spark", "s3"])
    put(b"asked", ASKED)
    assert jars.class_path(["spark", "s3"]) == f"{JAR.path}:{ASKED.path}"
