"""The contexts of the command line: a file that names brokers and the files of the credentials for each.

The file never holds a secret, only the paths of files that do. It decides to which broker a token is sent, so one that
others may write is refused.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

#: The setting that names another file.
FILE_VARIABLE: Final = "HELIOGRAPH_CONFIG"
_CURRENT: Final = "current-context"
_CONTEXTS: Final = "contexts"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PATHS: Final = ("token_file", "tls_ca", "client_cert", "client_key")


class AccessError(Exception):
    """The contexts, or the credentials for a broker, cannot be used; the message is one line for people."""


class Context(NamedTuple):
    """A broker's addresses and the files of the credentials for it; empty: not set. Keys in the file have dashes."""

    http_url: str = ""
    service_url: str = ""
    token_file: str = ""
    tls_ca: str = ""
    client_cert: str = ""
    client_key: str = ""

    def document(self) -> dict[str, str]:
        """Return the values that are set, by their keys in the file."""
        return {name.replace("_", "-"): value for name, value in self._asdict().items() if value}


class Contexts(NamedTuple):
    """The content of a file of contexts; ``current`` is the name of one of them, or empty."""

    named: Mapping[str, Context]
    current: str = ""

    def get(self, name: str, path: Path) -> Context:
        """Return the context ``name`` of the file at ``path``. Raises :class:`AccessError` if there is none."""
        if name not in self.named:
            valid = ", ".join(sorted(self.named)) or "none yet; 'heliograph context set' makes one"
            raise AccessError(f"there is no context {name!r} in {path}; valid: {valid}")
        return self.named[name]


def contexts_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the file is: as HELIOGRAPH_CONFIG says, or else below XDG_CONFIG_HOME or the home directory.

    None if none of them is known, as for some processes in containers.
    """
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME", "")
    # The specification has relative ones ignored.
    if not os.path.isabs(base):
        home = environment.get("HOME", "")
        if not home:
            return None
        base = os.path.join(home, ".config")
    return Path(base, "heliograph", "config.yaml")


def check_name(name: str) -> None:
    """Raise :class:`AccessError` if ``name`` cannot be that of a context."""
    if not _NAME.fullmatch(name):
        raise AccessError(
            f"{name!r} cannot name a context; valid: at most 63 letters, digits, '.', '_' and '-', first no sign"
        )


def check_printable(at: str, value: str) -> None:
    """Raise :class:`AccessError` if a value has control characters, which no terminal should be sent."""
    if not value.isprintable():
        raise AccessError(f"{at} is {value!r}; it should have no control characters")


def read_contexts(path: Path) -> Contexts:
    """Return what the file at ``path`` holds, nothing if there is no such file.

    Relative paths in it are those of its directory. Raises :class:`AccessError` if it cannot be read, is not one of
    contexts, or if users other than its owner may write it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read()
    except FileNotFoundError:
        return Contexts({})
    except UnicodeDecodeError:
        raise AccessError(f"{path} is not UTF-8") from None
    except OSError as error:
        raise AccessError(f"cannot read {path}: {error.strerror}") from error
    # Here, because most commands need no YAML.
    from heliograph_api.manifests.documents import NotReadable, read_yaml

    try:
        documents = read_yaml(text)
    except NotReadable as error:
        raise AccessError(f"{path}: {error}") from None
    if len(documents) > 1:
        raise AccessError(f"{path} has {len(documents)} documents; valid: one")
    return _contexts(path, documents[0] if documents else None)


def complete_context(incomplete: str) -> list[str]:
    """Return the names of contexts that begin so, for a shell; none if the file cannot be read."""
    path = contexts_path(os.environ)
    try:
        return [name for name in read_contexts(path).named if name.startswith(incomplete)] if path is not None else []
    except AccessError:
        # The line that is being typed is no place for it; the command says it.
        return []


def write_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file at ``path``, which only its owner may read; its directory is created if missing.

    Raises :class:`AccessError` if it cannot be written.
    """
    from heliograph_api.manifests.documents import write_yaml

    document: dict[str, object] = {_CURRENT: contexts.current} if contexts.current else {}
    document[_CONTEXTS] = {name: context.document() for name, context in contexts.named.items()}
    try:
        # A link to the file stays one.
        path = path.resolve()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made for its owner alone, whatever the umask.
        descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(write_yaml([document]))
                file.flush()
                os.fsync(descriptor)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AccessError(f"cannot write {path}: {error.strerror}") from error


def _check_owner(path: Path, status: os.stat_result) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise AccessError(f"{path} belongs to another user (uid {status.st_uid}), who could name another broker in it")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AccessError(
            f"others may write {path} (mode {stat.S_IMODE(status.st_mode):04o}), and name another broker in it; "
            f"correct it with: chmod 600 {path}"
        )


def _contexts(path: Path, document: object) -> Contexts:
    given = _mapping(document, path, "", (_CURRENT, _CONTEXTS))
    named = {}
    for name, each in _mapping(given.get(_CONTEXTS), path, _CONTEXTS).items():
        try:
            check_name(name)
        except AccessError as error:
            raise AccessError(f"{path}: {error}") from None
        named[name] = _context(path, f"{_CONTEXTS}.{name}", each)
    current = _text(given.get(_CURRENT), path, _CURRENT)
    if current and current not in named:
        raise AccessError(f"{path}: {_CURRENT} is {current!r}; valid: {', '.join(sorted(named)) or 'none'}")
    return Contexts(named, current)


def _context(path: Path, at: str, document: object) -> Context:
    keys = [name.replace("_", "-") for name in Context._fields]
    given = _mapping(document, path, at, keys)
    values = {name: _text(given.get(key), path, f"{at}.{key}") for name, key in zip(Context._fields, keys, strict=True)}
    for name in _PATHS:
        if values[name]:
            values[name] = os.path.join(path.absolute().parent, os.path.expanduser(values[name]))
    return Context(**values)


def _mapping(document: object, path: Path, at: str, valid: tuple[str, ...] | list[str] = ()) -> dict[str, Any]:
    place = f"{path}: {at}" if at else str(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise AccessError(f"{place} should be a mapping")
    for key in document:
        if not isinstance(key, str):
            raise AccessError(f"{place}: the key {key!r} should be a text; quote it")
        if valid and key not in valid:
            raise AccessError(f"{place}: {key!r} is not a key here; valid: {', '.join(valid)}")
    return document


def _text(value: object, path: Path, at: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise AccessError(f"{path}: {at} is {value!r}; it should be a text")
    check_printable(f"{path}: {at}", value)
    return value
