"""The files of a table as its metadata and as Hadoop name them."""

from __future__ import annotations

import re


def of_hadoop(location: str) -> str:
    """Return a location as Hadoop names it: its client for S3 has a scheme of its own."""
    return re.sub(r"^s3n?://", "s3a://", location)


def path_of(location: str) -> str:
    """Return the path in a location, without the scheme and the host or bucket, which are not written in one way.

    Hadoop takes several slashes for one, and so does this.
    """
    return re.sub("/+", "/", re.sub(r"^[a-z][a-z0-9]*:(//[^/]*)?", "", location))
