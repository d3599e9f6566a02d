"""A server that speaks S3, on a free port of this machine, with one bucket that the server keeps as files."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_ports

_ROOT = Path(__file__).parents[2]
SERVER = _ROOT / ".cache" / "s3" / "bin" / "versitygw"
#: The exit codes of scripts/s3-tools for what a machine lacks and for what cannot be fetched.
_NOT_TO_BE_HAD = (3, 4)
_FETCHED_WITHIN_S = 500.0
_UP_WITHIN_S = 90.0


class NotToBeHad(Exception):
    """The server cannot be built on this machine; the text says why."""


def fetch() -> None:
    """Build the server, which is quick if it is built. Raises :class:`NotToBeHad`."""
    done = subprocess.run(
        [str(_ROOT / "scripts" / "s3-tools"), "server"],
        capture_output=True,
        text=True,
        timeout=_FETCHED_WITHIN_S,
        check=False,
    )
    if done.returncode in _NOT_TO_BE_HAD:
        raise NotToBeHad("there is no S3 server: " + (done.stderr.splitlines() or ["it cannot be fetched"])[-1])
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server of this machine; ``files`` is where the server keeps its objects, as files."""

    name: str
    endpoint: str
    access_key: str
    secret_key: str
    files: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables that name the store and its keys."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def s3_bucket(directory: Path, name: str) -> Iterator[Bucket]:
    """Run a server with its files below ``directory``; yield an empty bucket of it."""
    (port,) = free_ports(1)
    made = Bucket(name, f"http://127.0.0.1:{port}", "heliograph", "a-secret-of-the-test", directory / "objects" / name)
    made.files.mkdir(parents=True)
    command = [str(SERVER), "--port", f"127.0.0.1:{port}", "--access", made.access_key, "--secret", made.secret_key]
    log = directory / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "posix", str(made.files.parent)],
            stdout=output,
            stderr=output,
            cwd=directory,
            env=dict(os.environ),
        )
    try:
        deadline = time.monotonic() + _UP_WITHIN_S
        while not _answers(made.endpoint):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield made
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError as error:
        # A client without credentials is refused: it is there.
        error.close()
    except OSError:
        return False
    return True
