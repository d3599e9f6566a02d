"""A server of Spark Connect in a process of its own, at a free port, with the packages of the pipeline."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.ports import free_ports

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
PIPELINE = Path(__file__).parents[2] / "pipeline"
#: The settings of each Spark that the tests start: nobody reaches it from another machine.
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_UP_WITHIN_S = 120.0


def listening(port: int) -> dict[str, str]:
    """Return the settings of a server of Spark Connect at a port of this machine."""
    return {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}


@contextmanager
def connect_server(
    directory: Path, conf: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a server of two cores that works in a directory; yield its address, ``sc://HOST:PORT``."""
    (port,) = free_ports(1)
    settings = LOCAL | listening(port) | {"spark.sql.warehouse.dir": str(directory / "warehouse")} | dict(conf or {})
    command = [
        str(SUBMIT),
        "--master",
        "local[2]",
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_REMOTE")}
    environment |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(PIPELINE), os.environ.get("PYTHONPATH", "")]),
        **(variables or {}),
    }
    log = directory / "connect.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not _listens(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        # spark-submit is a shell that becomes Java; its Python workers are of the same group.
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True
