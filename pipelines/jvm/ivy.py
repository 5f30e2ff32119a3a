"""Jars fetched with the Ivy that pyspark ships: to make the lock, and to fill the cache.

`lock` resolves what `jars.toml` wants, with all that depends on it. `fetch` asks for the exact jars
of the lock that the cache lacks, without reading any pom. Both work in a temporary folder inside
the cache and leave only jars behind. Ivy itself knows the host, its central repository. `resolve`,
`fetch_jars` and `write_lock` do the same for another lock: the benchmark has one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from xml.sax.saxutils import quoteattr

from pipelines.jvm.clone import packages_remedy
from pipelines.jvm.jars import (
    JAR_SETS,
    LOCK_NAME,
    OPTIONAL_SETS,
    Jar,
    JarError,
    cache_folder,
    locked,
    missing_jars,
    packaged_toml,
    sha256_of,
    unusable_cache,
)
from pipelines.jvm.network import network_options

# A jar's classifier stands in its folder's name, behind a colon.
_RETRIEVED = "[organisation]/[artifact](:[classifier])/[revision].[ext]"
# Sets on the class path of Spark, which has pyspark's jars too.
_BESIDE_PYSPARK = ("spark", "s3")
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <property name="ivy.checksums" value="{checksums}"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="{poms}"/></resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="txlake" module="{name}"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def fetch(java: Path, jar_sets: Sequence[str] = JAR_SETS) -> int:
    """Fetches the jars of these sets of the lock that the cache lacks, and returns how many.

    Errors: JarError if a jar cannot be had, or is not the one of the lock.
    Replay: a jar that is whole in the cache is not fetched again.
    """
    # A run for each set: both have Kafka's client, in two versions; in one run Ivy would pick one.
    return sum(fetch_jars(java, name, locked(name)) for name in jar_sets)


def fetch_jars(java: Path, name: str, jars: Iterable[Jar]) -> int:
    """Fetches those of these jars that the cache lacks, and returns how many.

    Errors: JarError, as `fetch`.
    """
    missing = missing_jars(jars)
    if not missing:
        return 0
    with _work_folder() as work:
        # The lock knows all jars and their SHA-256, so Ivy needs no poms and no SHA-1.
        lines = [_dependency(jar.coordinates, transitive=False) for jar in missing]
        _run_ivy(java, work, name, lines, poms=False)
        for jar in missing:
            accept(jar, work / "lib" / _retrieved_path(jar.coordinates))
    return len(missing)


def lock(java: Path) -> dict[str, list[Jar]]:
    """Resolves what `jars.toml` wants, fills the cache with it, and writes the lock beside it.

    Output: the jars by set.
    Errors: JarError if something cannot be resolved.
    """
    wanted = packaged_toml("jars.toml")
    resolved: dict[str, list[Jar]] = {}
    for name in (*JAR_SETS, *OPTIONAL_SETS):
        shipped = _shipped_by_pyspark() if name in _BESIDE_PYSPARK else frozenset()
        section = {**wanted[name], "wanted": wanted_coordinates(name)}
        resolved[name] = resolve(java, name, section, shipped)
    write_lock(Path(__file__).with_name(LOCK_NAME), resolved, "make jars-lock")
    return resolved


def resolve(
    java: Path, name: str, section: Mapping[str, list[str]], shipped: Iterable[str] = ()
) -> list[Jar]:
    """Resolves what a section of a `jars.toml` wants, and fills the cache with it.

    Input: `shipped`: artifacts to leave out, because others bring them.
    Output: the jars.
    Errors: JarError if something cannot be resolved.
    """
    ours = section["wanted"]
    alone = tuple(f"{module}:" for module in section["alone"])
    lines = [
        *(_dependency(c, transitive=not c.startswith(alone)) for c in ours),
        *map(_exclusion, section["excluded"]),
        *map(_override, ours),
    ]
    with _work_folder() as work:
        _run_ivy(java, work, name, lines, poms=True)
        return list(_retrieved_jars(work / "lib", shipped))


def wanted_coordinates(jar_set: str) -> list[str]:
    """Returns the jars that `jars.toml` wants, in the versions of the installed Python packages."""
    versions = {name: version(name) for name in ("pyspark", "delta-spark")}
    versions["hadoop"] = next(_pyspark_jars().glob("hadoop-client-api-*.jar")).stem[18:]
    return [text.format(**versions) for text in packaged_toml("jars.toml")[jar_set]["wanted"]]


@contextmanager
def _work_folder() -> Iterator[Path]:
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable_cache(error) from error
    with tempfile.TemporaryDirectory(prefix="ivy-", dir=cache_folder()) as name:
        yield Path(name)


def _run_ivy(java: Path, work: Path, name: str, lines: list[str], *, poms: bool) -> None:
    settings, module = work / "settings.xml", work / "ivy.xml"
    settings.write_text(
        _SETTINGS.format(poms=str(poms).lower(), checksums="sha1" if poms else ""), "utf-8"
    )
    module.write_text(_MODULE.format(name=name, dependencies="\n".join(lines)), "utf-8")

    ivy = next(_pyspark_jars().glob("ivy-*.jar"))
    command: list[str | Path] = [
        java,
        f"-Duser.home={work}",  # Ivy would make a folder in the user's home
        *network_options(work),
        "-jar",
        ivy,
        "-settings",
        settings,
        "-cache",
        work / "cache",
        "-ivy",
        module,
        "-types",
        "jar",
        "bundle",
        "-retrieve",
        work / "lib" / _RETRIEVED,
    ]

    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise JarError(_why(done.stdout + done.stderr))


def _why(log: str) -> str:
    """Returns one sentence from Ivy's log, with the first lines that tell the reason."""
    telling = re.findall(
        r"(?:::\s*\S+#\S+: .*|.*(?:SSLHandshake|UnknownHost|ConnectException|Server access).*)", log
    )
    reason = "; ".join(line.strip(" :\t") for line in telling[:3]) or log.strip()[-300:]
    return (
        f"the jars cannot be fetched: {reason}; check the network (https_proxy, SSL_CERT_FILE), "
        "then try again"
    )


def _dependency(coordinates: str, *, transitive: bool) -> str:
    organisation, artifact, revision, *classifier = coordinates.split(":")
    jar = f'<artifact name={quoteattr(artifact)} type="jar" ext="jar"'
    artifacts = "".join(f"{jar} m:classifier={quoteattr(part)}/>" for part in classifier)

    return (
        f"    <dependency org={quoteattr(organisation)} name={quoteattr(artifact)}"
        f' rev={quoteattr(revision)} transitive="{str(transitive).lower()}"'
        f' conf="default->default">{artifacts}</dependency>'
    )


def _exclusion(text: str) -> str:
    organisation, module = text.split(":")
    return f"    <exclude org={quoteattr(organisation)} module={quoteattr(module)}/>"


def _override(coordinates: str) -> str:
    """Returns the line that holds a jar we name at our version, whatever others ask for."""
    organisation, module, revision, *_ = coordinates.split(":")
    return (
        f"    <override org={quoteattr(organisation)} module={quoteattr(module)}"
        f" rev={quoteattr(revision)}/>"
    )


def _retrieved_path(coordinates: str) -> Path:
    organisation, artifact, revision, *classifier = coordinates.split(":")
    return Path(organisation, ":".join([artifact, *classifier]), f"{revision}.jar")


def _retrieved_jars(lib: Path, shipped: Iterable[str]) -> Iterator[Jar]:
    for path in sorted(lib.glob("*/*/*.jar")):
        organisation, name = path.parts[-3:-1]
        artifact, *classifier = name.split(":")
        if artifact in shipped:
            continue
        coordinates = ":".join([organisation, artifact, path.stem, *classifier])
        jar = Jar(coordinates, sha256_of(path), path.stat().st_size)
        accept(jar, path)
        yield jar


def accept(jar: Jar, path: Path) -> None:
    """Moves a fetched jar into the cache, if it is the one of the lock."""
    if not path.is_file():
        raise JarError(f"jar {jar.coordinates} was not found: try again")
    sha256 = sha256_of(path)
    if sha256 != jar.sha256:
        raise JarError(
            f"jar {jar.coordinates} came with SHA-256 {sha256}, but the lock says {jar.sha256}: "
            "do not use this network for it, or make the lock anew if you mean to change it"
        )
    jar.path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, jar.path)


def _shipped_by_pyspark() -> frozenset[str]:
    names = (re.match(r"(.+?)-\d", path.name) for path in _pyspark_jars().glob("*.jar"))
    return frozenset(name.group(1) for name in names if name)


def _pyspark_jars() -> Path:
    # An import of pyspark would do more than a path needs.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarError(
            f"pyspark, whose Ivy fetches the jars, is not installed: {packages_remedy()}"
        )
    return Path(spec.origin).parent / "jars"


def write_lock(path: Path, resolved: Mapping[str, list[Jar]], command: str) -> None:
    """Writes a lock, as `pipelines.jvm.jars` reads it. Input: `command`: what makes it."""
    head = f"# Made by `{command}` from jars.toml: change that file, not this one.\n"
    entries = (
        f'\n[[{name}]]\njar = "{jar.coordinates}"\n'
        f'sha256 = "{jar.sha256}"\nsize_bytes = {jar.size_bytes}\n'
        for name, jars in resolved.items()
        for jar in jars
    )
    fresh = path.with_suffix(".new")
    fresh.write_text(head + "".join(entries), "utf-8")
    os.replace(fresh, path)
