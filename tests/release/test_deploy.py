"""The files of conf/deploy: what they start is there, with these options, ports and paths."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from pipelines.cli.main import main
from pipelines.cli.stop_limit import STOP_S
from pipelines.metrics import server
from pipelines.settings import load
from release.wheels import job_requirements
from tests.support.commands import require_command
from tests.support.operator import said
from tests.support.optional import require

DEPLOY = Path(__file__).parents[2] / "conf" / "deploy"
UNIT = (DEPLOY / "txlake.service").read_text("utf-8")
# As Docker reads it: a continued line goes on over empty lines and comments.
CONTAINER = re.sub(r"\\\n(?:[ \t]*(?:#.*)?\n)*", " ", (DEPLOY / "Containerfile").read_text("utf-8"))
MANIFESTS = [*yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))]
# Of the schemas that the package has, one that clusters of today have, and the newest.
KUBERNETES = ("1.31", kubernetes_validate.latest_version())


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one for one in MANIFESTS if one["kind"] == kind)
    return found


def pod(kind: str) -> dict[str, Any]:
    spec: dict[str, Any] = manifest(kind)["spec"]["template"]["spec"]
    return spec


def settings_text() -> str:
    return str(manifest("ConfigMap")["data"]["job.toml"])


def values_of(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", CONTAINER, re.MULTILINE)


def test_the_unit_starts_the_product_and_waits_for_its_stop() -> None:
    (start,), (before,) = values_of("ExecStart"), values_of("ExecStartPre")
    for line in (start, before):
        program, *words = shlex.split(line)
        assert program == "/opt/txlake/bin/txlake"
        require_command(words)
    assert start.split()[-1] == before.split()[-1]
    assert int(values_of("TimeoutStopSec")[0]) >= 2 * STOP_S


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    require(program is not None, "no systemd-analyze (Debian: systemd): the unit is not tried")
    assert program is not None

    unit = tmp_path / "txlake.service"
    unit.write_text(UNIT.replace("/opt/txlake/bin/txlake", "/bin/true"), "utf-8")
    verified = [program, "verify", "--man=no", str(unit)]
    done = subprocess.run(verified, capture_output=True, text=True, check=False)
    about_ours = [line for line in done.stderr.splitlines() if "txlake" in line]
    assert about_ours == []

    unit.write_text(unit.read_text("utf-8").replace("Restart=always", "Restart=sometimes"), "utf-8")
    done = subprocess.run(verified, capture_output=True, text=True, check=False)
    assert "sometimes" in done.stderr  # it looks at what it is shown


def test_the_container_file_copies_what_is_built_and_runs_what_is_there() -> None:
    assert instructions("FROM") == ["debian:bookworm-slim AS build", "debian:bookworm-slim"]
    copied, installed = (text.split() for text in instructions("COPY"))
    assert copied == ["requirements-build.txt", "requirements.txt", "*.whl", "/dist/"]
    assert installed == ["--from=build", "/opt/txlake", "/opt/txlake"]

    commands = [part.strip() for line in instructions("RUN") for part in line.split("&&")]
    ours = [
        text.removeprefix("/opt/txlake/bin/txlake ") for text in commands if "bin/txlake" in text
    ]
    assert len(ours) == 1
    require_command(ours[0])

    # What is installed is what the heading of requirements.txt says.
    pips = [" ".join(text.split()[2:]) for text in commands if "/bin/pip " in text]
    plain = [text.replace("--no-cache-dir ", "").replace("/dist/", "") for text in pips]
    heading = re.findall(r"^#   pip install (.*)$", job_requirements(), re.MULTILINE)
    assert plain == heading

    entry = re.findall(r'"([^"]+)"', instructions("ENTRYPOINT")[0])
    words = re.findall(r'"([^"]+)"', instructions("CMD")[0])
    assert entry == ["/usr/bin/tini", "--", "txlake"]
    require_command(words)
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("USER") == [str(pod("StatefulSet")["securityContext"]["runAsUser"])]


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_are_valid_by_the_schemas_of_kubernetes(version: str) -> None:
    for one in MANIFESTS:
        kubernetes_validate.validate(one, version, strict=True)

    wrong = yaml.safe_load(yaml.safe_dump(manifest("StatefulSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_the_manifests_speak_of_the_product(tmp_path: Path) -> None:
    settings_file = "/etc/txlake/job.toml"
    paths = re.findall(r'case "(/\w+)"', Path(server.__file__).read_text("utf-8"))

    for kind in ("StatefulSet", "Deployment"):
        spec = pod(kind)
        (container,) = spec["containers"]
        require_command(container["args"])
        assert settings_file in container["args"]
        assert spec["terminationGracePeriodSeconds"] >= 2 * STOP_S
        version = re.findall(r'^version = "(.+)"', _project(), re.MULTILINE)[0]
        assert container["image"] == f"txlake:{version}"

        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in spec["volumes"]}
        assert Path(settings_file).parent == Path(mounts["conf"])
        assert f'_file = "{mounts["secrets"]}/' in settings_text()

        labels = manifest(kind)["spec"]["template"]["metadata"]["labels"]
        assert manifest(kind)["spec"]["selector"]["matchLabels"] == labels

    (job,) = pod("StatefulSet")["containers"]
    (port,) = job["ports"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = job[probe]["httpGet"]
        assert request["path"] in paths
        assert request["port"] == port["name"]
    assert manifest("Service")["spec"]["selector"] == {"app": "txlake", "part": "job"}
    assert port["containerPort"] == manifest("Service")["spec"]["ports"][0]["port"]

    for name in re.findall(r'_file" = "[^"]+/(\w+)"|_file = "[^"]+/(\w+)"', settings_text()):
        (tmp_path / "".join(name)).write_text("0123456789")
    conf = tmp_path / "job.toml"
    text = settings_text().replace("/run/secrets/txlake/", f"{tmp_path}/")
    conf.write_text(f"{text}\n[publish.main]\n", "utf-8")
    said("config", "validate", "--conf", str(conf))
    settings = load(str(conf))
    assert settings.metrics.port == port["containerPort"]
    assert settings.metrics.host == "0.0.0.0"  # noqa: S104
    assert str(settings.metrics.port) in instructions("EXPOSE")


def _project() -> str:
    return (DEPLOY.parents[1] / "pyproject.toml").read_text("utf-8")


def test_each_file_is_shown_by_the_command() -> None:
    listed = CliRunner().invoke(main, ["config", "sample", "--list"]).output
    for path in DEPLOY.iterdir():
        assert f"deploy/{path.name} " in listed
        assert said("config", "sample", f"deploy/{path.name}") == path.read_text("utf-8")
