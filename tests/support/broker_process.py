"""A real ``heliograph standalone`` in a process of its own, for every tier that tests from outside."""

from __future__ import annotations

import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from .secret_watch import WATCH

#: A broker is ready in under two seconds; a machine busy with other tests gets the rest.
READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 90.0
_PLAIN, _TLS = ("pulsar", "http"), ("pulsar+ssl", "https")


class BrokerProcess:
    """Starts, ends, kills and restarts one broker; its data directory and ports stay the same over restarts.

    ``manifests`` are given with ``-f``; ``arguments`` are further options of ``heliograph standalone``.
    ``descriptors`` are the soft and the hard limit of its open files, this process's own where none are given.
    Everything it logs goes to :attr:`log_path`, one file over all its lives: beside the data directory, or as given.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        manifests: Sequence[Path] = (),
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        descriptors: tuple[int, int] | None = None,
        log_path: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.log_path = log_path or data_dir.with_name(data_dir.name + ".log")
        self.service_url = ""
        self.http_url = ""
        #: Empty unless the broker has a certificate.
        self.service_tls_url = ""
        self.https_url = ""
        self._manifests = list(manifests)
        self._arguments = list(arguments)
        self._environment = environment or {}
        self._descriptors = descriptors
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process of the present life, running or ended. Raises :class:`RuntimeError` before the first start."""
        if self._process is None:
            raise RuntimeError("the broker was never started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def command(self) -> list[str]:
        """The command of the next start: any free ports the first time, the same ones ever after."""
        return [
            sys.executable,
            "-m",
            "heliograph_broker",
            "standalone",
            "--data-dir",
            str(self.data_dir),
            "--broker-port",
            str(urlsplit(self.service_url).port or 0),
            "--http-port",
            str(urlsplit(self.http_url).port or 0),
            "--broker-tls-port",
            str(urlsplit(self.service_tls_url).port or 0),
            "--https-port",
            str(urlsplit(self.https_url).port or 0),
            *(argument for path in self._manifests for argument in ("-f", str(path))),
            *self._arguments,
        ]

    def start(self, *, within_s: float = READY_WITHIN_S) -> float:
        """Start and wait for the ready line; returns the seconds it took.

        Raises :class:`AssertionError` with the log's end if the broker ends or is not ready in time.
        """
        started = time.monotonic()
        WATCH.log(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | self._environment,
                # A process group of its own: an interrupted test run must not end the broker before its client.
                start_new_session=True,
                preexec_fn=self._limit_descriptors if self._descriptors is not None else None,
            )
        line = self._first_line(started + within_s)
        if not line.startswith("ready "):
            code = self._process.poll()
            self.kill9()
            raise AssertionError(
                f"the broker printed {line!r} instead of its ready line within {within_s} s "
                f"(exit code {code}); its log ends:\n{self.log_tail()}"
            )
        urls = dict(url.split("://") for url in line.split()[1:])
        self.service_url, self.http_url = (f"{scheme}://{urls[scheme]}" if scheme in urls else "" for scheme in _PLAIN)
        self.service_tls_url, self.https_url = (f"{each}://{urls[each]}" if each in urls else "" for each in _TLS)
        return time.monotonic() - started

    def kill_while_starting(self, after_s: float) -> None:
        """Start it and kill it ``after_s`` seconds later, ready or not."""
        WATCH.log(self.log_path)
        with self.log_path.open("ab") as log:
            starting = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=os.environ | self._environment, start_new_session=True
            )
        try:
            starting.wait(after_s)
        except subprocess.TimeoutExpired:
            starting.kill()
            starting.wait()

    def _limit_descriptors(self) -> None:
        if self._descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)

    def _first_line(self, deadline: float) -> str:
        output = self.process.stdout
        assert output is not None
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return ""
        return output.readline()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self, *, within_s: float = STOPPED_WITHIN_S) -> int:
        """Send SIGTERM, wait for the end and return the exit code (0 after an orderly drain).

        Raises :class:`AssertionError` (after killing it) if it does not end in time.
        """
        process = self.process
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"the broker did not end within {within_s} s; log:\n{self.log_tail()}") from None
        self._close_output()
        return code

    def kill9(self) -> None:
        """End the process at once, as a power failure would, and wait until it is gone."""
        process = self.process
        process.kill()
        process.wait()
        self._close_output()

    def restart(self, *, within_s: float = READY_WITHIN_S) -> float:
        """End it in good order (if it still runs) and start it again; returns the seconds the start took."""
        if self.running:
            code = self.terminate()
            assert code == 0, f"the broker ended with {code}; log:\n{self.log_tail()}"
        return self.start(within_s=within_s)

    def close(self) -> None:
        """End the process if it runs; for fixtures and ``with``."""
        if self.running:
            self.terminate()

    def _close_output(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of what the broker has logged."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
