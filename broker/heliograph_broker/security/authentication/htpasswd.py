"""Files of users and the hashes of their passwords, in the form of Apache's ``htpasswd``; only bcrypt is accepted."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Final

from heliograph_api.values.quoting import quoted

from .provider import Unauthenticated
from .roles import stated_role

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
#: More than this takes a core seconds for each password.
MAX_COST: Final = 14
_MIN_COST: Final = 4
_BCRYPT: Final = re.compile(rb"\$2[aby]\$(?P<cost>[0-9]{2})\$[./A-Za-z0-9]{53}")
_OTHERS: Final[tuple[tuple[bytes, str], ...]] = (
    (b"$apr1$", "MD5 ($apr1$)"),
    (b"{SHA}", "SHA-1 ({SHA})"),
    (b"$1$", "MD5 ($1$)"),
    (b"$5$", "SHA-256 ($5$)"),
    (b"$6$", "SHA-512 ($6$)"),
)
_CRYPT: Final = re.compile(rb"[./A-Za-z0-9]{13}")


class InvalidHtpasswd(Exception):
    """A file of passwords is not valid; ``str(error)`` says where and what would be. It holds no hash."""


def parse_htpasswd(content: bytes) -> Mapping[str, bytes]:
    """Return the bcrypt hash of each user. Empty lines and those that begin with ``#`` are left out.

    Raises :class:`InvalidHtpasswd` naming the line and the user.
    """
    hashes: dict[str, bytes] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith(b"#"):
            continue
        name, separator, hashed = stripped.partition(b":")
        if not separator:
            raise InvalidHtpasswd(f"line {number} has no colon; valid: USER:HASH, as htpasswd -B writes it")
        try:
            user = stated_role(name.decode(), "it")
        except (UnicodeDecodeError, Unauthenticated):
            raise InvalidHtpasswd(f"line {number} has no valid name of a user; valid: printable characters") from None
        if user in hashes:
            raise InvalidHtpasswd(f"line {number}: user {quoted(user)} occurs more than once; valid: each user once")
        _check_hash(hashed, f"line {number}: user {quoted(user)}")
        hashes[user] = hashed
    return hashes


def _check_hash(hashed: bytes, whose: str) -> None:
    match = _BCRYPT.fullmatch(hashed)
    if match is None:
        raise InvalidHtpasswd(
            f"{whose} has a hash of {_kind(hashed)}; valid: bcrypt, as htpasswd -B -C 10 FILE USER writes it"
        )
    if not _MIN_COST <= int(match["cost"]) <= MAX_COST:
        raise InvalidHtpasswd(
            f"{whose} has a bcrypt hash of cost {int(match['cost'])}; valid: {_MIN_COST} to {MAX_COST}, "
            "as htpasswd -B -C 10 FILE USER writes it"
        )


def _kind(hashed: bytes) -> str:
    for prefix, name in _OTHERS:
        if hashed.startswith(prefix):
            return name
    if _CRYPT.fullmatch(hashed):
        return "crypt"
    # It may be a password that somebody has written down as it is.
    return "a bcrypt that is damaged" if hashed.startswith(b"$2") else "an unknown kind"


class StandIns:
    """Hashes to check the passwords of unknown users by, so that the time of a check does not tell who is known.

    No password has one of them. Each name always gets the same cost, and of many names as many get a cost as users in
    the file have it: were it always the costliest one, users with a cheaper one would be known by their time.
    """

    def __init__(self, hashes: Mapping[str, bytes], secret: bytes) -> None:
        """``secret`` keeps to itself which name gets which cost."""
        self._costs = sorted(hashed[4:6] for hashed in hashes.values()) or [b"10"]
        self._secret = secret

    def for_user(self, user: str) -> bytes:
        """Return the hash for a user who is not in the file."""
        drawn = int.from_bytes(hmac.digest(self._secret, user.encode(), "sha256")[:8])
        cost = self._costs[drawn * len(self._costs) >> 64]
        # The check of a password computes a whole digest, and no digest is known to be all dots.
        return b"$2b$" + cost + b"$" + b"." * 53
