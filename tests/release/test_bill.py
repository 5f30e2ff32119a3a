"""The bill of materials has all that is locked, and is one: the library's schema says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from pipelines.jvm.jars import packaged_toml
from release.bill import main

ROOT = Path(__file__).parents[2]
# Read here in a second way: the lock files line by line, the jars' lock as TOML.
PACKAGES = {
    pin
    for path in ROOT.glob("requirements*.lock")
    for pin in re.findall(r"^([\w.-]+)==([^\s;]+)", path.read_text("utf-8"), re.MULTILINE)
}
JARS = {
    (jar["jar"], jar["sha256"]) for jars in packaged_toml("jars.lock.toml").values() for jar in jars
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bill") / "folder" / "bill.json"
    done = CliRunner().invoke(main, ["--into", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    return path.read_text("utf-8")


@pytest.fixture(scope="module")
def components(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["components"]
    return found


def test_the_bill_is_as_cyclonedx_wants_it(text: str) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = text.replace('"bomFormat": "CycloneDX"', '"bomFormat": "x"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


def test_each_locked_package_is_in_the_bill_with_its_version_and_hashes(
    components: list[dict[str, Any]],
) -> None:
    found = {
        (component["name"], component["version"]): component
        for component in components
        if component["purl"].startswith("pkg:pypi/")
    }
    assert len(PACKAGES) > 150
    assert set(found) == {
        (name.lower().replace(".", "-").replace("_", "-"), version) for name, version in PACKAGES
    }
    for component in found.values():
        (files,) = component["externalReferences"]
        assert files["hashes"], component["name"]
        assert component["properties"], component["name"]


def test_each_locked_jar_is_in_the_bill_with_its_coordinates_and_hash(
    components: list[dict[str, Any]],
) -> None:
    found = set()
    for component in components:
        if component["purl"].startswith("pkg:maven/"):
            (sha256,) = component["hashes"]
            classifier = re.findall(r"classifier=([\w-]+)", component["purl"])
            parts = [component["group"], component["name"], component["version"], *classifier]
            found.add((":".join(parts), sha256["content"]))
    assert len(JARS) > 50
    assert found == JARS


def test_the_bill_says_what_the_job_needs_and_what_pyspark_brings_along(
    components: list[dict[str, Any]],
) -> None:
    scopes = {component["name"]: component["scope"] for component in components}
    needed = ("pyspark", "py4j", "confluent-kafka", "deltalake", "delta-storage", "duckdb")
    assert {name: scopes[name] for name in needed} == dict.fromkeys(needed, "required")
    others = ("pytest", "jupyterlab", "matplotlib", "s3proxy", "pip-audit")
    assert {name: scopes[name] for name in others} == dict.fromkeys(others, "optional")
    (pyspark,) = (one for one in components if one["name"] == "pyspark")
    brought = {one["name"]: one for one in pyspark["components"]}
    assert len(brought) > 100
    assert brought["log4j-core"]["group"] == "org.apache.logging.log4j"
    assert brought["log4j-core"]["version"]
    assert pyspark["licenses"]
    assert sum("licenses" in one for one in components) > len(components) / 3
