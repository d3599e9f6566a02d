"""The place of the jobs: beside Spark's own driver, whose file systems and cores they use."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql import SparkSession

from heliograph_spark.plan.errors import JobError

_REFUSAL = (
    "the jobs run beside Spark's own driver, and this is a session of Spark Connect; start them by spark-submit or with"
    " the cluster's own address as --master"
)


def check_settings(master: str | None, conf: Mapping[str, str]) -> None:
    """Raise :class:`JobError` if a session with these settings would be one of Spark Connect."""
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if remote is not None or (master or "").startswith("sc://"):
        raise JobError(f"{remote or master}: {_REFUSAL}")


def check_driver(spark: SparkSession) -> None:
    """Raise :class:`JobError` if this is a session of Spark Connect."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise JobError(_REFUSAL)
