"""Where pytest finds what the tests of the product and those of `bench/` share."""

from __future__ import annotations

import os

import pytest

from pipelines.cli.options import CONF_VARIABLE, LAKE_VARIABLE
from tests.support.class_archive import IN_TESTS, made_in_background

# The files that take longest. A worker that gets one of them last would be waited for, alone.
_LONG_FILES = (
    "tests/kafka/test_cluster.py",
    "bench/tests/unit/test_soak.py",
    "tests/kafka/test_standby.py",
    "tests/spark/test_spark_tables.py",
    "tests/unit/pipelines/test_floor_rebuilt.py",
    "tests/kafka/test_demo.py",
    "tests/kafka/test_compressed.py",
    "tests/kafka/test_cli.py",
)

pytest_plugins = ["tests.support.fixtures", "tests.support.store"]


def pytest_configure(config: pytest.Config) -> None:
    """Lets the drivers that tests start share an archive of classes; forgets the user's lake."""
    os.environ[IN_TESTS] = "1"
    for name in (CONF_VARIABLE, LAKE_VARIABLE):
        os.environ.pop(name, None)
    if getattr(config.option, "numprocesses", None):  # a whole run: it is worth being made
        making = made_in_background()
        making.__enter__()
        config.add_cleanup(lambda: making.__exit__(None, None, None))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the files that take longest; the others keep their order."""
    place = {name: number for number, name in enumerate(_LONG_FILES)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))
