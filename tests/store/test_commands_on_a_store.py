"""Commands on a lake in a store: what they say of a sound one, and of one that is out of reach."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.local_server.ports import Reservation
from pipelines.local_server.server import HOST
from pipelines.local_store.store import Store
from pipelines.replay import rebuild
from storage.files.location import lake_location
from tests.support import lake_commands
from tests.support.console_client import client
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import LOG, Fault, LostAnswer, Status
from tests.support.operator import said, txlake
from tests.support.sound_lake import sound_rows
from tests.support.store import Bucket, make_bucket
from txlake._consumer_offsets import Commit, ConsumerOffsets

COMMANDS = [
    ("verify",),
    ("replay", "--verify"),
    ("replay", "--what-if", "check_max=1"),
    ("dead", "list"),
    ("tx", "explain", "silent"),
    ("tx", "commit", "0-2", "--reason", "ticket", "--actor", "ada", "--dry-run"),
    ("schedule", "list"),
    ("maintain", "--dry-run"),
]


@dataclass(frozen=True)
class StoredLake:
    """A lake in a bucket."""

    bucket: Bucket

    @property
    def uri(self) -> str:
        return f"{self.bucket.uri}/lake"

    def conf(
        self,
        folder: Path,
        *,
        uri: str = "",
        endpoint: str = "",
        secret: str = "",
        has_http: bool = True,
    ) -> str:
        """Write settings that name it; Kafka is where nobody reaches it."""
        secret_file, path = folder / "secret", folder / "job.toml"
        secret_file.write_text(secret or self.bucket.keys.secret_access_key)
        secret_file.chmod(0o600)
        path.write_text(
            f"""
[lake]
path = "{uri or self.uri}"
[lake.store]
endpoint = "{endpoint or self.bucket.endpoint}"
region = "{self.bucket.options["AWS_REGION"]}"
access_key_id = "{self.bucket.keys.access_key_id}"
secret_access_key_file = "{secret_file}"
{"allow_http = true" if has_http else ""}
[kafka]
bootstrap_servers = "{HOST}:1"
[publish.main]
"""
        )
        return str(path)


@pytest.fixture(scope="module")
def local_lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sound_rows().write(tmp_path_factory.mktemp("sound") / "lake").path


@pytest.fixture(scope="module")
def lake(store: Store, local_lake: str) -> StoredLake:
    """A lake that holds what the local one does. No test changes a row of the job's."""
    made = StoredLake(make_bucket(store, f"commands-{time.time_ns()}"))
    rebuild(local_lake, lake_location(made.uri, made.bucket.options))
    return made


@pytest.fixture
def conf(lake: StoredLake, tmp_path: Path) -> str:
    return lake.conf(tmp_path)


def without_consumers(text: str) -> str:
    """Returns a text without its lines on consumer groups, whose offsets no rebuild copies."""
    lines = text.split("\n")
    page = 'href="/consumers"'  # with their number
    return "\n".join(line for line in lines if "consumer group" not in line and page not in line)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_says_the_same_of_a_lake_in_a_store(
    conf: str,
    lake: StoredLake,
    local_lake: str,
    tmp_path: Path,
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now_ns)  # what is told as "3.2 d ago"
    local = tmp_path / "local.toml"
    local.write_text(
        f'[lake]\npath = "{local_lake}"\n[kafka]\nbootstrap_servers = "{HOST}:1"\n[publish.main]\n'
    )
    if words[0] == "replay":  # its text says how long it took
        words = (*words, "-o", "json")
    there = said(*words, "--conf", conf).replace(lake.uri, "LAKE")
    here = said(*words, "--conf", str(local)).replace(local_lake, "LAKE")
    if words[0] == "verify":
        assert there.rstrip().endswith("all invariants hold")
        assert here.rstrip().endswith("all invariants hold")
    elif words[0] == "maintain":  # a rebuilt lake has other files
        assert there.rstrip().endswith("nothing was changed")
    elif "--verify" in words:
        assert (json.loads(there)["is_equal"], json.loads(here)["is_equal"]) == (True, True)
    else:
        assert without_consumers(there) == without_consumers(here)


def test_the_console_shows_the_same_of_a_lake_in_a_store(
    conf: str, lake: StoredLake, local_lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now_ns)
    there, here = client(lake.uri, conf), client(local_lake)
    assert there.get("/").status_code == 200
    for path in ("/dead", "/transactions?state=all&since=any", "/story?of=silent", "/delayed"):
        shown = there.get(path)
        assert shown.status_code == 200, shown.text
        expected = here.get(path).text
        assert without_consumers(shown.text.replace(lake.uri, "LAKE")) == without_consumers(
            expected.replace(local_lake, "LAKE")
        )


@pytest.mark.parametrize("only", [("--epochs", "1-2"), ("--one-batch",)], ids=" ".join)
def test_a_lake_is_rebuilt_in_its_store_without_kafka(
    conf: str, lake: StoredLake, unique: Callable[[str], str], only: tuple[str, ...]
) -> None:
    into = f"{lake.bucket.uri}/{unique('new')}"
    assert "added" in said("replay", "--conf", conf, "--into", into, *only)
    assert "nothing was added" in said("replay", "--conf", conf, "--into", into, *only)
    assert "all invariants hold" in said("verify", "--conf", conf, "--lake", into)


@pytest.mark.parametrize(
    "fault", [Fault(Status(), "PUT"), Fault(LostAnswer(), "PUT", LOG)], ids=["503", "lost answers"]
)
@pytest.mark.parametrize("command", ["maintain", "replay", "consumer"])
def test_a_command_whose_writes_a_store_does_not_answer_says_so_in_a_sentence(
    lake: StoredLake,
    store: Store,
    tmp_path: Path,
    unique: Callable[[str], str],
    command: str,
    fault: Fault,
) -> None:
    words = {
        "maintain": ["maintain", "--offline"],
        "replay": ["replay", "--into", f"{lake.bucket.uri}/{unique('new')}"],
        "consumer": ["consumer", "reset", "points", "--topic=parts", "--to=earliest", "--yes"],
    }[command]
    if command == "consumer":
        read_something(lake)
    with FaultProxy(store.port) as proxy, proxy.fault(fault) as happening:
        result = txlake(*words, "--conf", lake.conf(tmp_path, endpoint=proxy.endpoint))
        assert happening.hits > 0
    assert result.exit_code == 1, result.output
    assert result.output.count("\n") == 1, result.output
    assert re.match("Error: .*(does not answer|refused a commit|cannot be)", result.output)


def read_something(lake: StoredLake) -> None:
    """Lets a group have read a topic."""
    offsets = ConsumerOffsets(f"{lake.uri}/consumer_offsets", lake.bucket.options)
    offsets.write(lambda _, now: [Commit("points", "parts", 0, 0, 1, "", now)])


def test_credentials_can_be_in_the_environment(
    lake: StoredLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in lake.bucket.options.items():
        monkeypatch.setenv(name, value)
    assert "half:0-1" in said("dead", "list", "--lake", lake.uri)


# What is wrong with the settings, and what each command says of it; {lake} is the lake's URI.
OUT_OF_REACH = {
    "wrong secret": (
        {"secret": "another-secret"},
        "the lake {lake}: its store refuses access (403 Forbidden): check the credentials of "
        "[lake.store], and what they may do with this bucket",
    ),
    "no such bucket": (
        {"uri": "s3://no-such-bucket/lake"},
        "the lake s3://no-such-bucket/lake: its store has no such bucket: make it",
    ),
    "http is not allowed": (
        {"has_http": False},
        'the lake {lake}: its endpoint is http://: set allow_http = "true" in [lake.store] if that '
        "is meant, or name one with https://",
    ),
    "no lake": (
        {"uri": "{lake}-that-nobody-made"},
        "{lake}-that-nobody-made is not a lake: `txlake run` makes one there",
    ),
}


@pytest.mark.parametrize("wrong", OUT_OF_REACH)
def test_a_lake_out_of_reach_is_one_sentence(lake: StoredLake, tmp_path: Path, wrong: str) -> None:
    given, sentence = OUT_OF_REACH[wrong]
    settings: dict[str, Any] = {
        key: value.format(lake=lake.uri) if isinstance(value, str) else value
        for key, value in given.items()
    }
    conf = lake.conf(tmp_path, **settings)
    answers = lake_commands.answers(conf, lake_commands.opening_commands())
    # The SDK, and publishers that read by it, have their own words.
    for name in [name for name in answers if name.startswith(("publish", lake_commands.SDK))]:
        code, text = answers.pop(name)
        assert (code, text.count("\n")) == (1, 1), (name, text)
    expected = (1, f"Error: {sentence.format(lake=lake.uri)}\n")
    assert answers == dict.fromkeys(answers, expected)


def test_an_endpoint_that_nobody_listens_at_is_one_sentence(
    lake: StoredLake, tmp_path: Path
) -> None:
    held = Reservation(HOST, 0)
    (port,) = held.ports
    conf = lake.conf(tmp_path, endpoint=f"http://{HOST}:{port}")
    try:
        result = txlake("verify", "--conf", conf)
    finally:
        held.release()
    assert (result.exit_code, result.output) == (
        1,
        f"Error: the store of the lake {lake.uri} does not answer (Connection refused (os error "
        "111))\n",
    )
