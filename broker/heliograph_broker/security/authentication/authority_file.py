"""The certificate authorities by which servers of issuers are verified, from a file in PEM that may change."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from cryptography import x509


class AuthoritiesUnusable(Exception):
    """The file cannot be used; ``str(error)`` says which and why."""


class AuthorityFile:
    """The authorities in the file ``path``; None: those of the system."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def context(self) -> ssl.SSLContext:
        """Return a context of clients that trusts the authorities as they are in the file now. It blocks.

        Raises :class:`AuthoritiesUnusable` for a file that is not there or holds anything but certificates in PEM.
        """
        if self._path is None:
            return ssl.create_default_context()
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise AuthoritiesUnusable(f"cannot read {self._path}: {error.strerror}") from error
        try:
            # The one ignores a certificate that is cut off, the other an empty text. Comments may have any characters.
            x509.load_pem_x509_certificates(content)
            return ssl.create_default_context(cadata=content.decode("ascii", "ignore"))
        except (ValueError, ssl.SSLError):
            raise AuthoritiesUnusable(f"{self._path} holds no certificates in PEM, or a damaged one") from None


#: The authorities of the system.
SYSTEM: Final = AuthorityFile(None)
