"""The bill of materials of a release: each locked package and jar, in CycloneDX's JSON.

    python -m release.bill --into build/txlake.cdx.json

Python packages have the hashes of all their files, jars their SHA-256 and Maven's coordinates. What
pyspark ships as jars stands below pyspark. `scope` is "required" for what `txlake run` needs, else
"optional". Licences are those that what is installed here names.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from pipelines.jvm.jars import Jar, sha256_of
from release import licences
from release.locks import ROOT, Package, jars, needed_packages, packages

_NEEDED_SET: Final = "spark"
_FILE_NAME: Final = re.compile(r"(.+?)-(\d.*)\.jar")
_MAVEN: Final = re.compile(r"META-INF/maven/([^/]+)/([^/]+)/pom\.properties")


def bill() -> Bom:
    """Returns the bill of what the lock files name."""
    ours = Component(
        name="txlake",
        version=metadata.version("txlake-pipelines"),
        bom_ref="txlake",
        type=ComponentType.APPLICATION,
    )

    needed = needed_packages()
    made = Bom()
    made.metadata.component = ours

    found = [_of_package(package, package.name in needed) for package in packages()]
    found += [_of_jar(jar, sets) for jar, sets in jars().items()]
    for component in found:
        made.components.add(component)

    made.register_dependency(ours, found)
    return made


def _of_package(package: Package, is_needed: bool) -> Component:
    url = PackageURL("pypi", name=package.name, version=package.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(url)), hashes=_sha256(package.hashes)
    )
    return Component(
        name=package.name,
        version=package.version,
        purl=url,
        bom_ref=str(url),
        scope=_scope(is_needed),
        external_references=[files],
        licenses=_licences(licences.of_package(package.name, package.version)),
        properties=[Property(name="txlake:lock", value=name) for name in package.locks],
        components=_shipped_jars() if package.name == "pyspark" else (),
    )


def _of_jar(jar: Jar, sets: Iterable[str]) -> Component:
    group, name, version, *classifier = jar.coordinates.split(":")
    url = PackageURL(
        "maven", group, name, version, {"classifier": classifier[0]} if classifier else None
    )
    return Component(
        group=group,
        name=name,
        version=version,
        purl=url,
        bom_ref=str(url),
        scope=_scope(_NEEDED_SET in sets),
        hashes=_sha256([jar.sha256]),
        licenses=_licences(licences.of_jar(jar.path)),
        properties=[Property(name="txlake:jars", value=name) for name in sets],
    )


def _shipped_jars() -> Iterator[Component]:
    """Yields the jars inside pyspark; their group is known where they say it themselves."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None

    for path in sorted((Path(spec.origin).parent / "jars").glob("*.jar")):
        named = _FILE_NAME.fullmatch(path.name)
        name, version = (path.stem, None) if named is None else named.groups()
        group = _group(path, name)
        url = None if group is None else PackageURL("maven", group, name, version)
        yield Component(
            group=group,
            name=name,
            version=version,
            purl=url,
            bom_ref=f"pyspark/{path.name}",
            scope=ComponentScope.REQUIRED,
            hashes=_sha256([sha256_of(path)]),
            licenses=_licences(licences.of_jar(path)),
        )


def _group(path: Path, artifact: str) -> str | None:
    with zipfile.ZipFile(path) as jar:
        found = filter(None, map(_MAVEN.fullmatch, jar.namelist()))
        return next((match[1] for match in found if match[2] == artifact), None)


def _licences(named: Iterable[str]) -> list[License]:
    factory = LicenseFactory()
    texts = sorted(set(named))
    if len(texts) == 1:
        return [factory.make_from_string(texts[0])]
    return [factory.make_with_name(text) for text in texts]  # an expression stands alone


def _sha256(hashes: Iterable[str]) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=text) for text in hashes]


def _scope(is_needed: bool) -> ComponentScope:
    return ComponentScope.REQUIRED if is_needed else ComponentScope.OPTIONAL


@click.command()
@click.option(
    "--into",
    type=click.Path(dir_okay=False, path_type=Path),
    default=ROOT / "build" / "txlake.cdx.json",
)
def main(into: Path) -> None:
    """Write the bill of materials."""
    made = bill()
    into.parent.mkdir(parents=True, exist_ok=True)
    into.write_text(JsonV1Dot6(made).output_as_string(indent=2), "utf-8")
    click.echo(f"{len(made.components)} packages and jars are in {into}")


if __name__ == "__main__":
    main()
