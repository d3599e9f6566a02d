"""Directories in a bucket of S3, without a JVM: by the names of Hadoop's settings, and else as AWS's own tools do.

The settings ``spark.hadoop.fs.s3a.…`` say how the bucket is reached, those of ``fs.s3a.bucket.NAME.…`` first. What
they leave open is in the environment (``AWS_…``), or is the role of the machine or pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from heliograph_spark.plan.bucket_errors import with_advice
from heliograph_spark.plan.errors import JobError, MissingFileError

from .files import Directory, check_path, parquet_settings_of

_SETTINGS = "spark.hadoop.fs.s3a."
_NAMES = {
    "access.key": "access_key_id",
    "secret.key": "secret_access_key",
    "session.token": "session_token",
    "endpoint.region": "region",
}
#: The endpoint of all regions, which is the client's own default.
_CENTRAL = "s3.amazonaws.com"
#: How long (s) a connection, a request, and a request with those that repeat it may take.
_CONNECT_S, _REQUEST_S, _RETRY_S = 10, 60, 60
_RETRIES = 4
#: The keys that one request deletes at most.
_DELETED_AT_ONCE = 1000
_MESSAGE_CHARACTERS = 300


class BucketDirectory(Directory):
    """One directory, by its URI (``s3a://BUCKET/…``); ``conf`` are the settings of the session."""

    def __init__(self, path: str, conf: Mapping[str, str]) -> None:
        super().__init__(check_path(path))
        self._bucket, _, key = self.path.removeprefix("s3a://").partition("/")
        self._key = re.sub("/+", "/", key).strip("/")
        given = {name.removeprefix(_SETTINGS): value for name, value in conf.items() if name.startswith(_SETTINGS)}
        own = f"bucket.{self._bucket}."
        self._given = given | {name.removeprefix(own): value for name, value in given.items() if name.startswith(own)}
        self._parquet = parquet_settings_of(conf)
        with self._refusals(""):
            self._store = _store(self._bucket, self._given)

    def _at(self, name: str) -> str:
        return "/".join(part for part in (self._key, name) if part)

    @contextmanager
    def _refusals(self, name: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            missing = isinstance(error, (NotFoundError, FileNotFoundError)) and "NoSuchBucket" not in str(error)
            kind = MissingFileError if missing else JobError
            raise kind(f"{self.path}{'/' + name if name else ''}: {with_advice(_line(error))}") from error

    def parts(self) -> tuple[str, str, str]:
        return "s3a", self._bucket, f"/{self._key}"

    def settings(self, prefix: str) -> dict[str, str]:
        """Return none: tasks reach the bucket by the server's settings, and these keys stay in this process."""
        return {}

    def parquet_settings(self) -> list[str]:
        return self._parquet

    def exists(self, name: str = "") -> bool:
        with self._refusals(name):
            try:
                obstore.head(self._store, self._at(name))
                return True
            except (NotFoundError, FileNotFoundError):
                return bool(self.names(name))

    def names(self, name: str = "") -> list[str]:
        with self._refusals(name):
            at = self._at(name)
            found = obstore.list_with_delimiter(self._store, at or None)
            keys = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
            return sorted({each.rpartition("/")[2] for each in keys if each != at})

    def size(self, name: str) -> int:
        with self._refusals(name):
            return int(obstore.head(self._store, self._at(name))["size"])

    def read_text(self, name: str) -> str:
        with self._refusals(name):
            content = bytes(obstore.get(self._store, self._at(name)).bytes())
        return content.decode()

    def write_text(self, name: str, text: str) -> None:
        with self._refusals(name):
            obstore.put(self._store, self._at(name), text.encode(), use_multipart=False)

    def write_new(self, name: str, text: str, aside: str) -> bool:
        if self._given.get("create.conditional.enabled", "true").lower() == "false":
            # The store does not know the condition, and two may succeed.
            if self.exists(name):
                return False
            self.write_text(name, text)
            return self.read_text(name) == text
        try:
            with self._refusals(name):
                obstore.put(self._store, self._at(name), text.encode(), mode="create", use_multipart=False)
        except JobError as error:
            if not isinstance(error.__cause__, AlreadyExistsError):
                raise
        # A request whose answer was lost is sent once more, and finds its own file.
        return self.read_text(name) == text

    def make(self, name: str = "") -> None:
        """Check that the bucket can be listed: it has no directories without files."""
        self.names(name)

    def matching(self, pattern: str) -> list[str]:
        found = [""]
        for part in pattern.split("/"):
            if "*" in part:
                below = ((each, name) for each in found for name in self.names(each))
                found = [f"{each}/{name}".lstrip("/") for each, name in below if fnmatchcase(name, part)]
            else:
                named = (f"{each}/{part}".lstrip("/") for each in found)
                found = [each for each in named if self.exists(each)]
        return sorted(found)

    def files_before(self, ms: int) -> list[str]:
        with self._refusals(""):
            return sorted(
                self._name(each["path"])
                for each in self._files("")
                if int(each["last_modified"].timestamp() * 1000) < ms
            )

    def _files(self, name: str) -> Iterator[Any]:
        """Yield the store's metadata of each file below a directory."""
        for batch in obstore.list(self._store, self._at(name) or None, chunk_size=1000):
            yield from batch

    def _name(self, key: str) -> str:
        return key[len(self._key) + 1 :] if self._key else key

    def rename(self, old: str, new: str) -> None:
        """Copy and delete each file: a bucket knows no other way."""
        with self._refusals(old):
            source, target = self._at(old), self._at(new)
            if self.exists(new) and self.exists(old):
                raise JobError(f"{self.path}/{old}: it cannot be renamed to {new}, which is there")
            # A file is not below itself.
            files = {each["path"]: int(each["size"]) for each in self._files(old)} or {source: -1}
            for key, size in files.items():
                try:
                    obstore.copy(self._store, key, f"{target}{key[len(source) :]}")
                except (NotFoundError, FileNotFoundError):
                    # A directory that Hadoop has marked, with a slash after this name, is listed as an empty file.
                    if size != 0:
                        raise
            self._delete(list(files))

    def sync(self, *names: str) -> None:
        """Nothing is done: the store has answered that it has the files."""

    def delete(self, name: str = "") -> None:
        with self._refusals(name):
            self._delete([self._at(name), *(each["path"] for each in self._files(name))])

    def _delete(self, keys: list[str]) -> None:
        for first in range(0, len(keys), _DELETED_AT_ONCE):
            try:
                obstore.delete(self._store, keys[first : first + _DELETED_AT_ONCE])
            except (NotFoundError, FileNotFoundError):
                # Some servers say so of one that is not there, and what follows it is.
                for key in keys[first : first + _DELETED_AT_ONCE]:
                    self._delete_one(key)

    def _delete_one(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except (NotFoundError, FileNotFoundError):
            return


def _store(bucket: str, given: Mapping[str, str]) -> S3Store:
    config: dict[str, Any] = {argument: given[name] for name, argument in _NAMES.items() if given.get(name)}
    secure = given.get("connection.ssl.enabled", "true").lower() != "false"
    by_path = given.get("path.style.access", "").lower()
    if (endpoint := given.get("endpoint", "").rstrip("/")) and not endpoint.endswith(_CENTRAL):
        scheme, _, host = endpoint.rpartition("://")
        scheme = scheme or ("https" if secure else "http")
        by_host = by_path != "true"
        config["endpoint"] = f"{scheme}://{bucket}.{host}" if by_host else f"{scheme}://{host}"
        config["virtual_hosted_style_request"] = by_host
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type, unused-ignore]
        client_options={  # type: ignore[arg-type, unused-ignore]
            "allow_http": True,
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "timeout": timedelta(seconds=_REQUEST_S),
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
    )


def _line(error: Exception) -> str:
    """Return what an error says, in one line, with the code of the store's answer if there is one."""
    text = str(error)
    code, message = (re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
    if code is not None:
        return f"{code[1]}: {message[1] if message is not None else ''}".rstrip(": ")
    # After the blank line the client describes itself.
    return " ".join(text.partition("\n\n")[0].split())[:_MESSAGE_CHARACTERS] or type(error).__name__
