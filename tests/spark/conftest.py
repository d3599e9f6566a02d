"""One broker and one Spark for all tests of the data source: both are real, and talk over real sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import heliograph_spark
import pytest
from pyspark.sql import SparkSession

from tests.integration.client_fixtures import client, topic
from tests.support.broker_process import BrokerProcess
from tests.support.clients import RunningBroker, fresh_name, rest
from tests.support.java_tools import BRIEF
from tests.support.s3_server import Bucket, s3_bucket

from .connect_server import LOCAL, PIPELINE, connect_server
from .lakes import catalog
from .planners import planner

__all__ = ["PIPELINE", "broker", "bucket", "catalog", "client", "planner", "spark", "topic"]

T = TypeVar("T")

#: As it is installed beside the Python that runs the tests.
COMMAND = (str(Path(sys.executable).with_name("heliograph-spark")),)
#: An S3 server, and Hadoop's client for it.
S3_TOOLS = Path(__file__).parents[2] / ".cache" / "s3"
#: The archive of class_archive.py.
CLASSES = Path(sys.prefix) / "spark-classes.jsa"
# These apply to every Spark that the tests start, in this process or in another. Without BRIEF a start takes up to
# twice as long, and without the archive about twice as long again. Java uses the archive only if its class path begins
# like the archive's, so Hadoop's client comes last; otherwise it starts without the archive, and says nothing.
MAPPED = (f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:disable") if CLASSES.exists() else ()
os.environ["SPARK_SUBMIT_OPTS"] = " ".join([*BRIEF, *MAPPED, os.environ.get("SPARK_SUBMIT_OPTS", "")]).strip()
os.environ["SPARK_DIST_CLASSPATH"] = f"{S3_TOOLS}/jars/*"


@dataclass(frozen=True)
class Elsewhere:
    """A broker that somebody else runs, as a real Pulsar."""

    service_url: str
    http_url: str


def keep_everything(broker: RunningBroker) -> None:
    """Let the broker keep what nobody is subscribed to, also if the tests go on for longer than a ledger."""
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", "namespaces/public/default/retention", forever)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that keeps everything; ``HELIOGRAPH_SPARK_AGAINST=SERVICE-URL,HTTP-URL`` names one that runs already."""
    if against := os.environ.get("HELIOGRAPH_SPARK_AGAINST"):
        elsewhere = Elsewhere(*against.split(","))
        keep_everything(elsewhere)
        yield elsewhere
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as running:
        keep_everything(running)
        yield running


@pytest.fixture
def trims_exactly(broker: RunningBroker) -> None:
    """Asked for by tests that wait until a message nobody needs is gone."""
    if isinstance(broker, Elsewhere):
        pytest.skip("Apache Pulsar deletes whole ledgers only, and not the one that is written to")


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket of a name of its own; the server ends with the test."""
    if not (S3_TOOLS / ".installed").exists():
        pytest.skip("S3 is not tried: scripts/s3-tools has not fetched a server and Hadoop's client")
    with s3_bucket(tmp_path, fresh_name("bucket")) as made:
        yield made


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark of two threads in this process, whose Python workers can import the data source."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master("local[2]")
        .config(map=dict(LOCAL))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    heliograph_spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def connect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Spark Connect, in whose directory no test works."""
    with connect_server(tmp_path_factory.mktemp("connect")) as url:
        yield url


@pytest.fixture(scope="session")
def connect_session(connect_url: str) -> Iterator[SparkSession]:
    """A session of Spark Connect beside that of this process's own Spark; see ``runs``."""
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    session = ConnectSession.builder.remote(connect_url).create()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    yield session
    session.stop()


class Runs(Protocol):
    """Runs work on a session of one kind."""

    def __call__(self, work: Callable[[SparkSession], T]) -> T: ...


@pytest.fixture(params=["classic", "connect"])
def runs(request: pytest.FixtureRequest) -> Runs:
    """On the session of this process's own Spark, and on one of Spark Connect."""
    session: SparkSession = request.getfixturevalue("spark" if request.param == "classic" else "connect_session")

    def run(work: Callable[[SparkSession], T]) -> T:
        with pytest.MonkeyPatch.context() as patched:
            if request.param == "connect":
                # Spark's functions make columns for the one kind or the other, by this variable.
                patched.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
            return work(session)

    return run


@pytest.fixture
def tenant(broker: BrokerProcess) -> Iterator[str]:
    """A tenant of one's own with a namespace ``n`` that keeps everything."""
    name = fresh_name("usage")
    rest(broker, "PUT", f"tenants/{name}", {"allowedClusters": ["standalone"], "adminRoles": []})
    rest(broker, "PUT", f"namespaces/{name}/n")
    forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    rest(broker, "POST", f"namespaces/{name}/n/retention", forever)
    yield name
    rest(broker, "DELETE", f"namespaces/{name}/n?force=true")
    rest(broker, "DELETE", f"tenants/{name}")
