"""A place for objects: a bucket of a store that speaks S3, or a directory of a mounted volume."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import obstore
from heliograph_api.values.quoting import quoted
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import LocalStore, S3Store

#: Time (s) for one object, which is at most a part of a backup.
_REQUEST_S: Final = 50
_CONNECT_S: Final = 10
#: Attempts after the first one, and the time (s) in which they begin.
_RETRIES: Final = 4
_RETRY_S: Final = 60
_MESSAGE_CHARACTERS: Final = 300
#: Codes of answers to a wrong key or signature, and to one that may not do it.
_REFUSED: Final = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "XAdminUserNotFound")
_VALID = "s3://BUCKET/PREFIX or file:///DIRECTORY"


class StoreError(Exception):
    """An object store cannot be used; the message says why in one line."""


class Access(NamedTuple):
    """The address of an S3-compatible store. Keys and region come from the environment (``AWS_…``)."""

    endpoint: str = ""
    """URL of the store; empty: Amazon's, of the region."""
    path_style: bool = True
    """Whether the bucket is named in the path; otherwise in the host name."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust beside those of the system."""


class ObjectStore:
    """Objects below one URL. Every method takes its time, and raises :class:`StoreError`.

    The library has methods for event loops, too; those may abort the process when it ends.
    """

    def __init__(self, url: str, access: Access, environment: Mapping[str, str] = os.environ) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self._directory: Path | None = None
        self._store: S3Store | LocalStore
        try:
            if parts.scheme == "s3" and parts.netloc:
                self._store = _s3(parts.netloc, parts.path.strip("/"), access, environment)
            elif parts.scheme == "file" and not parts.netloc and parts.path.strip("/"):
                self._directory = Path(parts.path)
                self._store = LocalStore(self._directory, mkdir=True, automatic_cleanup=True)
            else:
                raise StoreError(f"{quoted(url)} is not a place for backups; valid: {_VALID}")
        except (BaseError, OSError, ValueError) as error:
            raise StoreError(f"{url} cannot be used: {_line(error)}") from error

    def put(self, path: str, content: bytes) -> None:
        """Write an object as a whole: nobody ever sees a part of it."""
        with self._problems():
            obstore.put(self._store, path, content, use_multipart=False)
            if self._directory is not None:
                _sync(self._directory / path)

    def create(self, path: str, content: bytes) -> bool:
        """Write an object as a whole unless there is one of this name; return whether it was written.

        False is no proof that another process wrote it: a request whose answer was lost is sent once more.
        """
        with self._problems():
            try:
                obstore.put(self._store, path, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            if self._directory is not None:
                _sync(self._directory / path)
        return True

    def get(self, path: str) -> bytes:
        """Return an object's content. Raises :class:`KeyError` if there is none of this name."""
        with self._problems(missing=True):
            return bytes(obstore.get(self._store, path).bytes())

    def sizes(self, below: str = "") -> dict[str, int]:
        """Return the sizes (bytes) of all objects whose path begins with the directory ``below``."""
        with self._problems():
            stream = obstore.list(self._store, below or None, chunk_size=1000)
            return {str(meta["path"]): int(meta["size"]) for batch in stream for meta in batch}

    def delete(self, path: str) -> None:
        """Delete an object; a missing one counts as deleted."""
        try:
            with self._problems(missing=True):
                obstore.delete(self._store, path)
        except KeyError:
            return

    def delete_staged(self, below: str, names: re.Pattern[str]) -> bool:
        """Delete what killed processes left of objects of these names in ``below``; return whether there was any.

        In a directory, an object is written as ``NAME#1`` and then renamed. A bucket keeps nothing of an upload that
        did not end.
        """
        if self._directory is None:
            return False
        directory = self._directory / below
        with self._problems():
            staged = [path for path in directory.iterdir() if _is_staged(path, names)] if directory.is_dir() else []
            for path in staged:
                path.unlink(missing_ok=True)
            if staged and not any(directory.iterdir()):
                directory.rmdir()
        return bool(staged)

    @contextmanager
    def _problems(self, *, missing: bool = False) -> Iterator[None]:
        """Raise :class:`StoreError` for what goes wrong, with ``missing`` :class:`KeyError` for what is not there."""
        try:
            yield
        except (NotFoundError, FileNotFoundError) as error:
            if missing and _answer(error)[0] in ("", "NoSuchKey"):
                raise KeyError(str(error)) from error
            raise self._problem(error) from error
        except (BaseError, OSError) as error:
            raise self._problem(error) from error

    def _problem(self, error: Exception) -> StoreError:
        code, _ = _answer(error)
        if code == "NoSuchBucket":
            return StoreError(f"{self.url}: the store has no such bucket; create it, or name another")
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or code in _REFUSED:
            return StoreError(
                f"{self.url}: the store refuses these keys: {_line(error)}; valid: AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY of an account that may list, read, write and delete there"
            )
        return StoreError(f"{self.url}: {_line(error)}")


def _s3(bucket: str, prefix: str, access: Access, environment: Mapping[str, str]) -> S3Store:
    if not (environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY")):
        raise StoreError("there are no keys for the store; valid: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        if not environment.get(name, "x").isprintable():
            raise StoreError(f"{name} has a line break or another control character; valid: the key alone")
    client: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_REQUEST_S),
    }
    if access.ca_file is not None:
        client["root_certificate"] = access.ca_file.read_text()
    settings: dict[str, Any] = {
        "region": environment.get("AWS_REGION") or "us-east-1",
        "access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
        "virtual_hosted_style_request": not access.path_style,
    }
    if token := environment.get("AWS_SESSION_TOKEN"):
        settings["session_token"] = token
    if access.endpoint:
        settings["endpoint"] = access.endpoint
    return S3Store(
        bucket,
        prefix=prefix or None,
        config=settings,  # type: ignore[arg-type]
        client_options=client,  # type: ignore[arg-type]
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
    )


def _is_staged(path: Path, names: re.Pattern[str]) -> bool:
    name, hash_sign, number = path.name.rpartition("#")
    return bool(hash_sign) and number.isdecimal() and names.fullmatch(name) is not None


def _sync(path: Path) -> None:
    """Make a file and its name durable."""
    for each in (path, path.parent, path.parent.parent):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _answer(error: Exception) -> tuple[str, str]:
    """Return the code and the message of a store's answer, both empty if there is none."""
    text = str(error)
    found = [re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message")]
    code, message = (match[1] if match else "" for match in found)
    return code, message


def _line(error: Exception) -> str:
    """Return what an error says, in one line of a length for people."""
    code, message = _answer(error)
    # After the blank line the client describes itself.
    text = f"{code}: {message}" if code else " ".join(str(error).partition("\n\n")[0].split())
    return text[:_MESSAGE_CHARACTERS] or type(error).__name__
