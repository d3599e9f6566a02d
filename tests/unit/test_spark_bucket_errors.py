"""Errors of the clients for buckets and catalogs, as these word them, name the setting that would be right."""

from __future__ import annotations

import pytest
from heliograph_spark.plan.bucket_errors import with_advice


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (
            "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class"
            " org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "spark.jars.packages=org.apache.hadoop:hadoop-aws:",
        ),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"', "s3a://"),
        ("When uploading part: AWS Error NO_SUCH_BUCKET during PutObject operation: not there", "make the bucket"),
        (
            "java.nio.file.AccessDeniedException: s3a://b/x: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: No"
            " AWS Credentials provided",
            "AWS_SECRET_ACCESS_KEY",
        ),
        ("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body.", "s3.region"),
        ("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 6", "s3.endpoint"),
        (
            "URI missing, please provide using --uri, the config or environment variable PYICEBERG_CATALOG__LAKE__URI",
            "--catalog-property uri=…, with type=sql or type=rest, or in .pyiceberg.yaml",
        ),
        ("'foo' is not a valid CatalogType", "valid: rest, sql, hive, glue, dynamodb"),
        ("Could not initialize FileIO: no.such.FileIO", "pyiceberg.io.pyarrow.PyArrowFileIO"),
    ],
)
def test_an_error_of_a_bucket_or_catalog_names_the_setting_that_would_be_right(message: str, named: str) -> None:
    advised = with_advice(message)
    assert advised.startswith(message.rstrip("."))
    assert named in advised.removeprefix(message)


@pytest.mark.parametrize(
    "message", ["AWS Error SLOW_DOWN during PutObject operation: later", "java.io.FileNotFoundException: s3a://b/x"]
)
def test_another_error_stays_as_it_is(message: str) -> None:
    assert with_advice(message) == message
