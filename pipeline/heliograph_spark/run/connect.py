"""The two kinds of sessions: beside Spark's own driver, and of Spark Connect, whose server has the driver.

With Spark Connect this process has no JVM and no ``SparkContext``, and need not have ``py4j``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from weakref import WeakKeyDictionary

from pyspark import StorageLevel
from pyspark.errors import PySparkException, PySparkValueError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from heliograph_spark.plan.errors import JobError, PulsarSourceError

#: What a step of a job may fail with: this package's errors, and Spark's. Those of gRPC Spark's client makes its own.
FAILURES: tuple[type[Exception], ...] = (PulsarSourceError, PySparkException)
with suppress(ModuleNotFoundError):
    from py4j.protocol import Py4JError

    FAILURES = (*FAILURES, Py4JError)
#: What a question to a Spark that has ended raises.
_GONE: tuple[type[Exception], ...] = (*FAILURES, OSError)

#: How long a server of Spark Connect may take for a connection (s).
_CONNECTED_WITHIN_S = 20.0
_NO_SERVER = (
    "no server of Spark Connect answers there; valid: sc://HOST:PORT of one that runs, the port being its"
    " spark.connect.grpc.binding.port (15002), with ;use_ssl=true behind TLS"
)
#: The settings of sessions of Spark Connect that only this process has.
_own_settings: WeakKeyDictionary[SparkSession, Mapping[str, str]] = WeakKeyDictionary()
#: The numbers of which each of Spark's tasks gets a part: more than there are cores.
_MORE_THAN_CORES = 1 << 20


def is_connect(spark: SparkSession) -> bool:
    """Whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def has_ended(spark: SparkSession) -> bool:
    """Whether Spark has ended or, with Spark Connect, its server has this session no more: nothing would succeed."""
    try:
        if is_connect(spark):
            spark.conf.get("spark.sql.session.timeZone")
            return False
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except _GONE:
        return True


def remote_of(master: str | None, conf: Mapping[str, str]) -> str | None:
    """Return the address of the server of Spark Connect that is asked for; None for a Spark of this process's own.

    Raises :class:`JobError` if a master is named, too, or if Spark would start such a server in this process.
    """
    remote = conf.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if master is not None and master.startswith("sc://"):
        return master
    if remote is None:
        return None
    if master is not None:
        raise JobError(f"master {master} and Spark Connect at {shown(remote)}: both given; valid: one of them")
    if not remote.startswith("sc://"):
        raise JobError(f"spark.remote or SPARK_REMOTE {remote}: valid: sc://HOST:PORT; without it, --master {remote}")
    return remote


def shown(remote: str) -> str:
    """Return an address of Spark Connect without its parameters, one of which may be a token."""
    return remote.partition(";")[0].rstrip("/")


def check_answers(remote: str) -> None:
    """Raise :class:`JobError` if no server answers: Spark's client would try again for ten minutes."""
    # Its library in C writes about connections on stderr.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(remote).toChannel()
    except PySparkValueError as error:
        raise JobError(f"{shown(remote)}: {error}") from error
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECTED_WITHIN_S)
    except grpc.FutureTimeoutError as error:
        raise JobError(f"{shown(remote)}: {_NO_SERVER}") from error
    finally:
        channel.close()


def set_own(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Keep settings of a session of Spark Connect in this process, such as keys, which a server does not tell again."""
    _own_settings[spark] = dict(conf)


def settings_of(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session of Spark Connect: those that the server shows, and :func:`set_own`'s."""
    of_server: dict[str, str] = spark.conf.getAll
    return {**of_server, **_own_settings.get(spark, {})}


def cores(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at the same time, as it counts when a query does not say so."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # A client gets to know no more than how Spark divides numbers.
    parts = spark.range(_MORE_THAN_CORES).select(f.spark_partition_id().alias("part"))
    return int(parts.agg(f.max("part")).collect()[0][0]) + 1


def keep(rows: DataFrame, level: StorageLevel) -> DataFrame:
    """Return rows that are computed once and kept by the executors until :func:`release`.

    A server of Spark Connect may not recognize them in a later query and compute them again, so there they are computed
    now, and have a name.
    """
    if is_connect(rows.sparkSession):
        return rows.localCheckpoint(eager=True, storageLevel=level)
    return rows.persist(level)


def release(rows: DataFrame) -> None:
    """Let the executors forget rows; with Spark Connect they do so when this process has them no more."""
    if not is_connect(rows.sparkSession):
        rows.unpersist()


def words_of_java(error: BaseException) -> str | None:
    """Return Java's message of an error that py4j raised; None for any other error."""
    thrown = getattr(error, "java_exception", None)
    return None if thrown is None else str(thrown.toString())
