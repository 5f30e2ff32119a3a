"""What the SDK needs: a producer Kafka's client alone, a consumer Arrow and Delta on top."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import confluent_kafka
import pytest
from packaging.requirements import Requirement

import txlake

ROOT = Path(__file__).parents[3]
SDK = " ".join((ROOT / "docs" / "sdk.md").read_text("utf-8").split())
CONSUMER = {"deltalake", "numpy", "pyarrow"}


def needed(extra: str = "") -> set[str]:
    """Return what installing the client brings, by its metadata."""
    found = [Requirement(line) for line in metadata.requires("txlake") or ()]
    return {
        one.name for one in found if one.marker is None or one.marker.evaluate({"extra": extra})
    }


@pytest.fixture
def alone(tmp_path: Path) -> list[str]:
    """A Python that finds the client and Kafka's client, and no other package."""
    folder = Path(confluent_kafka.__file__).parent
    packages = [Path(txlake.__file__).parent, folder, *folder.parent.glob("confluent_kafka.libs")]
    if sys.version_info < (3, 11):  # what Kafka's client needs there
        packages.append(folder.parent / "typing_extensions.py")
    for package in packages:
        (tmp_path / package.name).symlink_to(package)
    begin = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec(sys.argv[1])"
    return [sys.executable, "-I", "-S", "-c", begin]


def test_a_producer_needs_kafkas_client_alone(alone: list[str]) -> None:
    program = (
        "import txlake, txlake.testing\n"
        "from txlake import Message, Producer, SigningKey, TransactionProducer\n"
        "with Producer('127.0.0.1:1') as producer: print('made')\n"
        "print(sorted({'pyarrow', 'deltalake', 'numpy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([*alone, program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("made\n[]\n", 0), done.stderr
    assert needed() == {"confluent-kafka"}


@pytest.mark.parametrize(
    "statement",
    [
        "from txlake import Consumer",
        "import txlake.consumer",
        "from txlake import LakeQueueCounts",
    ],
)
def test_a_consumer_without_its_extra_says_what_to_install(
    alone: list[str], statement: str
) -> None:
    done = subprocess.run([*alone, statement], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: reading a lake needs pyarrow, deltalake, numpy: install txlake with its "
        "extra, txlake[consumer]; in a clone: pip install './client[consumer]'"
    )


def test_the_page_names_what_each_needs() -> None:
    producer, consumer = re.findall(
        r"A producer needs (.*?) alone. A consumer needs (.*?), too: the extra `consumer`", SDK
    )[0]
    assert {producer} == needed()
    assert set(re.findall(r"[\w-]+", consumer)) - {"and"} == CONSUMER
    assert needed("consumer") == {producer} | CONSUMER


def test_the_job_comes_with_all_of_the_client() -> None:
    lines = [Requirement(line) for line in metadata.requires("txlake-pipelines") or ()]
    (client,) = (line for line in lines if line.name == "txlake")
    assert client.extras == {"consumer"}
