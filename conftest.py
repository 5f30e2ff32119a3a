"""Where pytest finds what the tests of the product and those of `bench/` share."""

from __future__ import annotations

import os

import pytest

from tests.support.class_archive import IN_TESTS, made_in_background

pytest_plugins = ["tests.support.fixtures", "tests.support.store"]


def pytest_configure(config: pytest.Config) -> None:
    """Lets the drivers that tests start share an archive of classes."""
    os.environ[IN_TESTS] = "1"
    if getattr(config.option, "numprocesses", None):  # a whole run: it is worth being made
        making = made_in_background()
        making.__enter__()
        config.add_cleanup(lambda: making.__exit__(None, None, None))
