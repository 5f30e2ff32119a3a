"""Licences, as packages and jars on this machine name them: no network is asked."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

_CLASSIFIER = "License :: "
_TEXT_MAX = 100  # some have the whole licence where its name belongs
_MANIFEST = "META-INF/MANIFEST.MF"
_BUNDLE = "Bundle-License: "


def of_package(name: str, version: str) -> list[str]:
    """Returns what an installed package names: an expression, or names; none if it is not here."""
    try:
        told = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return []

    if told.version != version:
        return []

    if "License-Expression" in told.metadata:
        return [str(told.metadata["License-Expression"])]

    classifiers = [
        str(line).rpartition(" :: ")[2]
        for line in told.metadata.get_all("Classifier", [])
        if str(line).startswith(_CLASSIFIER)
    ]
    text = str(told.metadata["License"]).strip() if "License" in told.metadata else ""
    return classifiers or ([text] if 0 < len(text) <= _TEXT_MAX and "\n" not in text else [])


def of_jar(path: Path) -> list[str]:
    """Returns what a jar's manifest names; nothing if the jar is not here or names none."""
    if not path.is_file():
        return []
    with zipfile.ZipFile(path) as jar:
        if _MANIFEST not in jar.namelist():
            return []
        text = jar.read(_MANIFEST).decode("utf-8", "replace")
    lines = text.replace("\r\n", "\n").replace("\n ", "").splitlines()  # a long line goes on so
    return [line.removeprefix(_BUNDLE).strip() for line in lines if line.startswith(_BUNDLE)]
