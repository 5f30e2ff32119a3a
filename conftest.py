"""Where pytest finds what the tests of the product and those of `bench/` share."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import gc
import math
import os
from contextlib import suppress

import pytest

from pipelines.cli.options import CONF_VARIABLE, LAKE_VARIABLE
from tests.support.class_archive import IN_TESTS, made_in_background, make_servers_quick
from tests.support.durations import read_record, seconds_of_files

pytest_plugins = ["tests.support.fixtures", "tests.support.store"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what `make check` asks for."""
    parser.addoption(
        "--quick", action="store_true", help="leave out the tests that tests/durations.csv names"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Lets the JVMs that tests start share archives of classes; forgets the user's lake."""
    os.environ[IN_TESTS] = "1"
    # Tables of tests have few rows: a second thread of delta-rs is woken for nothing.
    os.environ["TOKIO_WORKER_THREADS"] = "1"
    make_servers_quick()
    for name in (CONF_VARIABLE, LAKE_VARIABLE):
        os.environ.pop(name, None)
    if getattr(config.option, "numprocesses", None):  # a whole run: it is worth being made
        making = made_in_background()
        making.__enter__()
        config.add_cleanup(lambda: making.__exit__(None, None, None))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begins with the files that take longest: a worker that gets one last is waited for, alone."""
    record = read_record()
    seconds = seconds_of_files(record)
    items.sort(key=lambda item: -seconds.get(_file_of(item), math.inf))

    if config.getoption("--quick"):
        quick, long = [], []
        for item in items:
            function = (_file_of(item), getattr(item, "originalname", item.name))
            (long if function in record else quick).append(item)

        config.hook.pytest_deselected(items=long)
        items[:] = quick


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test to which another file has left an event loop: asyncio runs no second one."""
    if "tests/browser/" in item.nodeid:
        return  # a browser has one until its file ends

    with suppress(RuntimeError):
        pytest.fail(f"left by a file before: {asyncio.get_running_loop()}")


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives as long as the run: all modules, all tests."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Ends the threads of all pools before Python does: those of consoles are nobody's to wait for.

    Ended beside it, one frees its connection of DuckDB, waits for Python's lock, and aborts all.
    """
    concurrent.futures.thread._python_exit()  # what Python calls at its end


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
