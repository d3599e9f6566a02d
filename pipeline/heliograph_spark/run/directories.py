"""Opens a directory for a session, by the client that the session has of its file system."""

from __future__ import annotations

from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError

from .connect import is_connect, settings_of
from .files import Directory, check_path
from .local_files import LocalDirectory


def open_directory(spark: SparkSession, path: str) -> Directory:
    """Return a directory, which need not be there. Raises :class:`JobError`, naming the path.

    With Spark Connect it is a local one of this process, which Spark's server has to see under the same path, or one in
    a bucket of S3.
    """
    if not is_connect(spark):
        # It needs py4j, which a client of Spark Connect may not have.
        from .hadoop_files import HadoopDirectory

        return HadoopDirectory(spark, path)
    scheme = urlsplit(check_path(path)).scheme
    if scheme == "s3a":
        # It needs a package that other jobs do without.
        from .bucket_files import BucketDirectory

        return BucketDirectory(path, settings_of(spark))
    if scheme in ("", "file"):
        return LocalDirectory(path, settings_of(spark))
    raise JobError(f"{path}: with Spark Connect a path is a local one, which Spark's server shares, or s3a://BUCKET/…")
