"""Files that a command writes for its user: never over another one unless that is asked for."""

from __future__ import annotations

import os
from pathlib import Path

from heliograph_broker.cli.base.shared_options import CliError

#: Permissions of files with secrets.
PRIVATE = 0o600
PUBLIC = 0o644


def check_new(path: Path, force: bool) -> None:
    """Raise :class:`CliError` if ``path`` exists, unless ``force`` is set."""
    if not force and path.exists():
        raise _exists(path)


def write_new(path: Path, content: bytes, mode: int, force: bool) -> None:
    """Write a file of this mode, with ``force`` in place of another one. Raises :class:`CliError`."""
    # A file that is replaced may be open to others: what is written never has that one's permissions.
    written = path.with_name(f".{path.name}.new") if force else path
    try:
        if force:
            written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        if force:
            written.replace(path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from None


def _exists(path: Path) -> CliError:
    return CliError(f"{path} exists already; choose another name, or replace it with --force")
