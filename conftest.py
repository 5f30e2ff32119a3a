"""Where pytest finds what the tests of the product and those of `bench/` share."""

pytest_plugins = ["tests.support.fixtures", "tests.support.store"]
