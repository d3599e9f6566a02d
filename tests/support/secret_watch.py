"""The secrets that tests make, and the logs that none of them may be in.

Helpers that make a secret name it here, those that start a process name its log, and a fixture of the whole run looks
for each of the former in each of the latter. A secret is also found as Base64, and a token by its signature alone.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

#: Shorter texts may be in a log by chance, or as a part of a word.
SHORTEST: Final = 8
_TOKEN: Final = re.compile(r"[\w-]+\.[\w-]+\.([\w-]*)")
_PEM_LINES: Final = re.compile(r"^[A-Za-z0-9+/=]{24,}$", re.MULTILINE)


class SecretWatch:
    """Secrets by what they are called, and logs."""

    def __init__(self) -> None:
        self._secrets: dict[str, str] = {}
        self._logs: dict[Path, None] = {}

    def secret(self, name: str, value: str | bytes) -> None:
        """Look for a secret from now on: a token, a password, or a private key as bytes or in PEM.

        Raises :class:`ValueError` if it is so short that it may be any word.
        """
        content = value.encode() if isinstance(value, str) else value
        if len(content) < SHORTEST:
            raise ValueError(f"the secret {name!r} has {len(content)} bytes; valid: at least {SHORTEST}")
        for form in _forms(content):
            self._secrets.setdefault(form, name)

    def password(self, user: str, password: str) -> None:
        """Look for a password from now on, also together with its user, as HTTP encodes them."""
        self.secret(f"password of {user}", password)
        self.secret(f"password of {user}", f"{user}:{password}")

    def log(self, path: Path) -> None:
        """Look into a log at the end of the run."""
        self._logs[path] = None

    def found_in(self, text: str) -> list[str]:
        """Return the names of the secrets that a text has."""
        return sorted({name for form, name in self._secrets.items() if form in text})

    def found(self) -> list[str]:
        """Return a line for each log that has secrets or is not there any more; nothing if all is well."""
        lines = []
        for path in self._logs:
            if not path.exists():
                lines.append(f"{path}: was removed before anybody looked for secrets in it")
            elif names := self.found_in(path.read_text("utf-8", errors="replace")):
                lines.append(f"{path}: {', '.join(names)}")
        return lines


def _forms(content: bytes) -> Iterator[str]:
    """Yield the texts by which a secret is found."""
    for encoded in (base64.b64encode(content), base64.urlsafe_b64encode(content)):
        yield encoded.decode().rstrip("=")
    yield content.hex()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        yield repr(content)[2:-1]
        return
    if "PRIVATE KEY" in text:
        # The first line of a key says of which kind it is; any other one is the key's own.
        yield from _PEM_LINES.findall(text)[1:-1]
    elif token := _TOKEN.fullmatch(text):
        # A message may show a token's end only. One without a signature is found as a whole.
        yield token[1] if len(token[1]) >= SHORTEST else text
    else:
        yield text
        yield urllib.parse.quote(text)
        yield urllib.parse.quote_plus(text)


#: Those of this process, in which a run's tests are.
WATCH: Final = SecretWatch()


@pytest.fixture(scope="session", autouse=True)
def no_secret_is_logged() -> Iterator[None]:
    """The logs of all processes that the run's tests started have none of the secrets that they made."""
    yield
    found = "\n".join(WATCH.found())
    assert not found, f"logs with secrets in them:\n{found}"
