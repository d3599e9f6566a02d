"""Files of users with passwords, as ``htpasswd`` writes them, hashed by bcrypt itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import bcrypt

from .secret_watch import WATCH

#: The least that bcrypt takes: tests wait for it.
_ROUNDS = 4


def write_users(path: Path, passwords: Mapping[str, str], *, rounds: int = _ROUNDS) -> Path:
    """Write a file of users by their passwords, and return its path; one round more doubles the work of a check."""
    lines = []
    for user, password in passwords.items():
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds)).decode()
        WATCH.password(user, password)
        WATCH.secret(f"hash of the password of {user}", hashed)
        lines.append(f"{user}:{hashed}\n")
    path.write_text("".join(lines))
    return path
