"""A real ``heliograph-operator run`` in a process of its own, on this host, against a real API server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from .polling import eventually
from .secret_watch import WATCH

UP_WITHIN_S = 180.0
STOPPED_WITHIN_S = 90.0


class OperatorProcess:
    """Starts, ends and kills one operator for one Kubernetes namespace; all its lives log to :attr:`log_path`."""

    def __init__(
        self, log_path: Path, namespace: str, environment: Mapping[str, str], *, arguments: tuple[str, ...] = ()
    ) -> None:
        self.log_path = log_path
        self._port = 0
        self._begins = 0
        self._command = [sys.executable, "-m", "heliograph_operator", "run", "--namespace", namespace]
        self._command += ["--bind", "127.0.0.1", "--port", "0", *arguments]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def port(self) -> int:
        """The port of /healthz and /metrics, when it leads."""
        if not self._port:
            self.wait_until_it_leads()
        return self._port

    def start(self) -> None:
        """Start it and wait until it leads. Raises :class:`AssertionError` with the log's end if it does not."""
        self.launch()
        self.wait_until_it_leads()

    def launch(self) -> None:
        """Start it; nobody who only applies resources has to wait for it."""
        self._port = 0
        self._begins = self.log_path.stat().st_size if self.log_path.exists() else 0
        WATCH.log(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )

    def wait_until_it_leads(self) -> None:
        """Raises :class:`AssertionError` with the log's end if it does not."""
        process = self._process
        assert process is not None

        def leads() -> bool:
            lines = [each for each in self._log(self._begins) if each.startswith("{")]
            output = {entry.get("event"): entry for entry in map(json.loads, lines)}
            if "acquired leadership" not in output:
                assert process.poll() is None, f"it ended with exit code {process.returncode}"
                return False
            self._port = int(output["operator started"]["port"])
            return True

        try:
            eventually(leads, within_s=UP_WITHIN_S, what="the operator leads", every_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log_tail()}") from None

    def terminate(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"the operator did not end; its log:\n{self.log_tail()}") from None

    def kill9(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.terminate()

    def get(self, path: str) -> str:
        """Return what its HTTP port answers."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of a metric that have these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        lines = [line for line in self.get("/metrics").splitlines() if line.split("{")[0].split(" ")[0] == name]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(each in line for each in wanted))

    def writes(self) -> float:
        """Return how often it wrote to the API server."""
        name = "heliograph_operator_kubernetes_requests_total"
        return sum(self.metric(name, verb=verb) for verb in ("create", "update", "patch", "delete"))

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self._log(0)[-lines:])

    def _log(self, offset: int) -> list[str]:
        with self.log_path.open("rb") as log:
            log.seek(offset)
            # The last line may be written just now.
            return log.read().decode(errors="replace").split("\n")[:-1]
