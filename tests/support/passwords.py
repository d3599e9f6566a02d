"""Files of users with passwords, as ``htpasswd`` writes them, hashed by bcrypt itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import bcrypt

from .secret_watch import WATCH

#: The least that bcrypt takes: tests wait for it.
_ROUNDS = 4


def write_users(path: Path, passwords: Mapping[str, str]) -> Path:
    """Write a file of users by their passwords, and return its path."""
    lines = []
    for user, password in passwords.items():
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_ROUNDS)).decode()
        WATCH.password(user, password)
        WATCH.secret(f"hash of the password of {user}", hashed)
        lines.append(f"{user}:{hashed}\n")
    path.write_text("".join(lines))
    return path
