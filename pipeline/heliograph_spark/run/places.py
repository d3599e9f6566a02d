"""Directories in which tasks write files themselves, by Arrow: of a local file system, or of a bucket.

Spark's own tasks write through Hadoop, whose settings say how a bucket is reached. Arrow has a client for S3 of its
own, so a bucket is such a place only if all of its settings mean the same to both: keys, and a region or an endpoint
that is not Amazon's. With any other one, such as encryption, a proxy or the role of a pod, Hadoop writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .files import Directory

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_S3A = "fs.s3a."
#: The endpoint of all regions: with it, Hadoop's client finds the one of the bucket, and Arrow's is redirected.
_CENTRAL = "s3.amazonaws.com"
_AMAZON = re.compile(r"\.amazonaws\.com(\.cn)?(:\d+)?$")
#: The region for another endpoint if none is given. Arrow's client would look for one in each task's environment.
_USUAL_REGION = "us-east-1"
#: Ways to get keys that only take those which the settings name.
_GIVEN_KEYS = {
    f"org.apache.hadoop.fs.s3a.{name}" for name in ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
}
#: Settings of Hadoop's client by how their names begin that say how it works, and not where or what it writes.
_HOW = (
    *("attempts.", "block.", "bucket.", "buffer.", "change.", "committer.", "connection.maximum", "connection.timeout"),
    *("connection.establish", "directory.marker", "downgrade.", "etag.", "executor.", "fast.upload.", "impl", "input."),
    *("list.", "max.total.tasks", "multipart.", "paging.", "performance.", "readahead.", "retry.", "socket."),
    *("threads.", "user.agent", "vectored."),
)


@dataclass(frozen=True, slots=True)
class Place:
    """The path of a local directory or, with ``s3``, of one in a bucket, whose name the path begins with."""

    path: str
    #: Arguments of Arrow's client.
    s3: Mapping[str, str | bool] | None = field(default=None, repr=False)

    def filesystem(self) -> FileSystem:
        """Return the client of the file system."""
        from pyarrow import fs

        if self.s3 is None:
            return fs.LocalFileSystem()
        # In the background, what a slow network has not sent yet would fill the memory.
        return fs.S3FileSystem(**self.s3, background_writes=False)


def place_of(directory: Directory) -> Place | None:
    """Return the directory as a place; None if only Hadoop knows its file system or how it is written to."""
    if directory.parquet_settings():
        return None
    scheme, host, path = directory.parts()
    if scheme == "file":
        return Place(path)
    if scheme != "s3a":
        return None
    settings = _s3_settings(directory.settings(_S3A))
    return None if settings is None else Place(f"{host}{path}", settings)


def _s3_settings(given: Mapping[str, str]) -> Mapping[str, str | bool] | None:
    """Return the settings of Hadoop's client (without ``fs.s3a.``) as arguments of Arrow's; None if it has not all."""
    left = {name: value for name, value in given.items() if not name.startswith(_HOW)}
    found: dict[str, str | bool] = {}
    for name, argument in (
        ("access.key", "access_key"),
        ("secret.key", "secret_key"),
        ("session.token", "session_token"),
        ("endpoint.region", "region"),
        ("endpoint", "endpoint_override"),
    ):
        if value := left.pop(name, ""):
            found[argument] = value
    secure = left.pop("connection.ssl.enabled", "true").lower() != "false"
    by_path = left.pop("path.style.access", "false").lower() == "true"
    if isinstance(endpoint := found.get("endpoint_override"), str):
        # In Hadoop, the scheme of the endpoint goes before the other setting.
        scheme, _, host = endpoint.rstrip("/").rpartition("://")
        if host.endswith(_CENTRAL):
            del found["endpoint_override"]
        else:
            found |= {"endpoint_override": host, "force_virtual_addressing": not by_path}
            if not _AMAZON.search(host):
                found.setdefault("region", _USUAL_REGION)
        secure = scheme != "http" if scheme else secure
    found["scheme"] = "https" if secure else "http"
    providers = {each.strip() for each in left.pop("aws.credentials.provider", "").split(",") if each.strip()}
    if left or not {"region", "access_key", "secret_key"} <= found.keys() or not providers <= _GIVEN_KEYS:
        return None
    return found
