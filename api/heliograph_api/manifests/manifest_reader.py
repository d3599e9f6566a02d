"""Manifests: files of resources, read with errors that say where, what, and what would be valid."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from heliograph_api.resources.model import API_VERSION, BROKER_KINDS, KINDS, AnyResource
from heliograph_api.values.quoting import quoted

from .documents import NotReadable, read_json, read_yaml, write_yaml
from .explain import explain, title
from .manifest_error import ManifestError

SUFFIXES = (".yaml", ".yml", ".json")


class _Document(NamedTuple):
    """A document and where it is: ``orders.yaml: document 2``."""

    where: str
    content: object


def load(paths: Iterable[Path | str]) -> list[AnyResource]:
    """Read files and folders (recursively). Raises :class:`ManifestError` with everything wrong in all of them."""
    problems: list[str] = []
    return _resources(_read(paths, problems), problems)


def parse(text: str, source: str = "manifest") -> list[AnyResource]:
    """Read a YAML stream; ``source`` names it in errors. Raises :class:`ManifestError`."""
    problems: list[str] = []
    return _resources(_documents(text, source, problems), problems)


def read_documents(paths: Iterable[Path | str]) -> str:
    """Return what files and folders hold as one YAML stream, not validated. Raises :class:`ManifestError`."""
    problems: list[str] = []
    documents = _read(paths, problems)
    if problems:
        raise ManifestError(problems)
    return write_yaml(document.content for document in documents)


def manifest_files(path: Path) -> list[Path]:
    """Return the manifests in a folder (recursively), or the one file. Raises :class:`ManifestError`: none there."""
    problems: list[str] = []
    files = _files(path, problems)
    if problems:
        raise ManifestError(problems)
    return files


def _read(paths: Iterable[Path | str], problems: list[str]) -> list[_Document]:
    documents: list[_Document] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        for file in _files(path, problems):
            # A folder and a file in it may both be asked for.
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                text = file.read_text(encoding="utf-8-sig")
            except UnicodeDecodeError as error:
                problems.append(f"{file}: not UTF-8 (byte {error.start}); valid: text in UTF-8")
                continue
            except OSError as error:
                problems.append(f"{file}: cannot be read: {error.strerror}")
                continue
            documents += _documents(text, str(file), problems)
    return documents


def _files(path: Path, problems: list[str]) -> list[Path]:
    if not path.is_dir():
        if path.exists():
            return [path]
        problems.append(f"{path}: there is no such file or folder")
        return []
    files = sorted(_walk(path))
    if not files:
        problems.append(f"{path}: there are no manifests in this folder; valid: files named *.yaml, *.yml or *.json")
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        # A mounted ConfigMap holds its files a second time in a hidden folder.
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(root, name)


def _documents(text: str, source: str, problems: list[str]) -> list[_Document]:
    try:
        contents = (read_json if source.endswith(".json") else read_yaml)(text)
    except NotReadable as error:
        problems.append(f"{source}: {error}")
        return []
    return [
        _Document(f"{source}: document {number}", content)
        for number, content in enumerate(contents, 1)
        # A trailing separator leaves an empty document.
        if content is not None
    ]


def _resources(documents: Iterable[_Document], problems: list[str]) -> list[AnyResource]:
    resources = []
    for document in documents:
        resource = _resource(document, problems)
        if resource is not None:
            resources.append(resource)
    _check_unique(resources, problems)
    if problems:
        raise ManifestError(problems)
    return resources


def _resource(document: _Document, problems: list[str]) -> AnyResource | None:
    where, content = document
    if not isinstance(content, dict):
        problems.append(f"{where}: {quoted(content)} is not a resource; valid: apiVersion, kind, metadata and spec")
        return None
    if named := title(content):
        where = f"{where} ({named})"
    version, kind = content.get("apiVersion"), content.get("kind")
    model = BROKER_KINDS.get(kind) if isinstance(kind, str) else None
    if version != API_VERSION:
        problems.append(f"{where}: apiVersion: {_given(content, 'apiVersion')}; valid: {API_VERSION}")
    if model is None:
        given = (
            f"{quoted(kind)} is for the operator only"
            if isinstance(kind, str) and kind in KINDS
            else _given(content, "kind")
        )
        problems.append(f"{where}: kind: {given}; valid: {', '.join(BROKER_KINDS)}")
    if version != API_VERSION or model is None:
        return None
    try:
        return model.model_validate(content).read_from(where)
    except ValidationError as error:
        problems.extend(f"{where}: {line}" for line in explain(error, model, content))
        return None


def _given(content: dict[object, object], field: str) -> str:
    return f"{quoted(content[field])} is not known here" if field in content else "is missing"


def _check_unique(resources: Sequence[AnyResource], problems: list[str]) -> None:
    first: dict[tuple[str, str, str], AnyResource] = {}
    for resource in resources:
        key = (resource.kind, resource.metadata.namespace, resource.metadata.name)
        earlier = first.setdefault(key, resource)
        if earlier is not resource:
            problems.append(
                f"{resource.source}: metadata.name: this resource is there already: {earlier.source};"
                f" valid: one {resource.kind} {resource.metadata.name} in namespace {resource.metadata.namespace}"
            )
