"""Advice for errors of the clients that reach a bucket or a catalog: Hadoop's, pyiceberg, and a job's own.

They say what was refused, and not which of a job's settings it goes by.
"""

from __future__ import annotations

import re

_MAKE_IT = "make the bucket first: no job makes one"
#: What to do about a message that a pattern finds; the first one that does counts.
_ADVICE = (
    (
        r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.s3a\.",
        "Spark lacks Hadoop's client for S3, which"
        " --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION fetches, in the version of Spark's Hadoop",
    ),
    (r'No FileSystem for scheme "s3n?"', "Hadoop's client for S3 is named s3a: write s3a://BUCKET/DIRECTORY"),
    (r"NoSuchBucket|NO_SUCH_BUCKET", _MAKE_IT),
    (
        r"java\.nio\.file\.AccessDeniedException: s3a:",
        "Spark's keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment,"
        " or --conf spark.hadoop.fs.s3a.access.key=… and spark.hadoop.fs.s3a.secret.key=…",
    ),
    (
        r"^(?:AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch)\b",
        "with Spark Connect a job's own keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in its environment,"
        " or --conf spark.hadoop.fs.s3a.access.key=… and spark.hadoop.fs.s3a.secret.key=…",
    ),
    (
        r"AWS Error (?:ACCESS_DENIED|INVALID_|SIGNATURE_|NETWORK_CONNECTION|UNKNOWN \(HTTP status 40[03]\))",
        "pyiceberg goes by the catalog's properties s3.endpoint, s3.region, s3.access-key-id and s3.secret-access-key"
        " (--catalog-property); without keys in them by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
    (
        r"No module named '(?:s3fs|gcsfs|adlfs)'",
        "pip install the package of that name, or use pyarrow, which is there:"
        " --catalog-property py-io-impl=pyiceberg.io.pyarrow.PyArrowFileIO",
    ),
    (
        r"URI missing, please provide using --uri",
        "here the option is --catalog-property uri=…, with type=sql or type=rest, or in .pyiceberg.yaml",
    ),
    (r"is not a valid CatalogType", "valid: rest, sql, hive, glue, dynamodb, bigquery or in-memory"),
    (
        r"Could not initialize FileIO: ",
        "py-io-impl is pyiceberg.io.pyarrow.PyArrowFileIO, pyiceberg.io.fsspec.FsspecFileIO or a class whose module is"
        " installed",
    ),
)


def with_advice(message: str) -> str:
    """Return the message of an error with what to do about it, where a setting is the reason."""
    for pattern, advice in _ADVICE:
        if re.search(pattern, message):
            return f"{message.rstrip('.')}; {advice}"
    return message
