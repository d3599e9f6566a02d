"""The place of a key: ``path``, ``file:///path`` or ``data:;base64,…``, as Pulsar's settings and commands take it."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

from heliograph_api.values.quoting import quoted

T = TypeVar("T")

VALID = "a path, file:///path or data:;base64,TEXT"
MAX_KEY_BYTES = 64 * 1024
#: A data URL holds one comma of its own.
_SOURCE = re.compile(r"\s*(data:[^,]*,[^,]*|[^,]+)(?:,|$)")
#: A key in the place of its file: Base64, hexadecimal digits, or PEM.
_MAY_BE_KEY = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}|.*(?:-----BEGIN|\n).*", re.DOTALL)


class KeyUnusable(ValueError):
    """A key cannot be read or used. The message says why, and holds nothing of the key."""


def split_sources(text: str) -> list[str]:
    """Return the sources of a setting, which commas separate; those without text are left out."""
    return [source for source in (each.strip() for each in _SOURCE.findall(text)) if source]


def source_name(source: str) -> str:
    """Return ``source`` as an error or a log may hold it: without the key that a data URL is."""
    return "data:…" if holds_key(source) else quoted(source)


def read_source(source: str) -> bytes:
    """Return the bytes of the key at ``source``. Raises :class:`KeyUnusable` with the source's name."""
    if holds_key(source):
        return _data(source)
    name = source_name(source)
    path = _path(source)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_BYTES + 1)
    except (OSError, ValueError) as error:
        if _MAY_BE_KEY.fullmatch(source) and not (path.is_absolute() and path.parent.is_dir()):
            hint = f"{len(source)} characters, not shown because they may be a key"
            raise KeyUnusable(f"there is no file of the name that is given ({hint}); valid: {VALID}") from None
        if isinstance(error, FileNotFoundError):
            raise KeyUnusable(f"there is no file {name}; valid: {VALID}") from None
        reason = getattr(error, "strerror", None) or str(error)
        raise KeyUnusable(f"{name} cannot be read: {reason}") from None
    if len(content) > MAX_KEY_BYTES:
        raise KeyUnusable(f"{name} is larger than a key: more than {MAX_KEY_BYTES} bytes")
    if not content.strip():
        raise KeyUnusable(f"{name} is empty; valid: a file that holds a key")
    return content


def parse_source(source: str, content: bytes, parse: Callable[[bytes], T]) -> T:
    """Return what ``parse`` makes of the content; a :class:`KeyUnusable` of it gets the source's name."""
    try:
        return parse(content)
    except KeyUnusable as error:
        raise KeyUnusable(f"{source_name(source)}: {error}") from None


def holds_key(source: str) -> bool:
    """Return whether ``source`` is the key itself, and not the name of its file."""
    return source[:5].lower() == "data:"


def _path(source: str) -> Path:
    if source[:5].lower() != "file:":
        return Path(source)
    url = urlsplit(source)
    if url.netloc not in ("", "localhost"):
        raise KeyUnusable(f"{quoted(source)} names a file of another host; valid: file:///path")
    return Path(unquote_to_bytes(url.path).decode(errors="surrogateescape"))


def _data(source: str) -> bytes:
    head, comma, text = source.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise KeyUnusable("a key that begins with data: is none in base64; valid: data:;base64,TEXT")
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise KeyUnusable("the text of a key that begins with data: is not base64") from None
    if not content:
        raise KeyUnusable("a key that begins with data: is empty; valid: data:;base64,TEXT")
    return content
