"""A real Prometheus, a real Alertmanager, and a receiver of its notifications, for one test."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from .polling import eventually
from .ports import free_ports

#: What a dashboard's variables stand for with "All"; Grafana gives the interval of rates.
ALL = {"$cluster": ".*", "$namespace": ".*", "$topic": ".*", "$__rate_interval": "1m"}


def program(name: str) -> str:
    """Return the path of a program of Debian's packages; the test is skipped without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on this machine (Debian's packages prometheus, prometheus-alertmanager)")
    return found


class _Server:
    """A process with an HTTP port, which logs to a file."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def __enter__(self) -> Self:
        try:
            eventually(self._ready, what=f"{self.url} is ready", every_s=0.1)
        except AssertionError as error:
            self.__exit__()
            raise AssertionError(f"{error}; its log:\n{self._log.read_text()[-4000:]}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        assert self._process.poll() is None, f"it ended with {self._process.returncode}"
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, ConnectionError, TimeoutError):
            return False


class Prometheus(_Server):
    """Scrapes ``targets``, each a job with its address and the labels that Kubernetes would give it."""

    def __init__(
        self,
        directory: Path,
        targets: Mapping[str, tuple[str, Mapping[str, str]]],
        *,
        every: str = "2s",
        rules: Sequence[Path] = (),
        alertmanager: str = "",
    ) -> None:
        directory.mkdir(exist_ok=True)
        [port] = free_ports(1)
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {
                    "job_name": job,
                    # As the chart's ServiceMonitors say.
                    "honor_labels": True,
                    "static_configs": [{"targets": [address], "labels": dict(labels)}],
                }
                for job, (address, labels) in targets.items()
            ],
        }
        if alertmanager:
            address = alertmanager.removeprefix("http://")
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}
        file = directory / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [program("prometheus"), f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}"]
        super().__init__([*command, f"--web.listen-address=127.0.0.1:{port}"], port, directory / "prometheus.log")

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series now. Raises :class:`AssertionError` for a wrong query."""
        query = urlencode({"query": expression})
        try:
            with urlopen(f"{self.url}/api/v1/query?{query}", timeout=20) as answer:
                found = json.load(answer)
        except URLError as error:
            raise AssertionError(f"{expression}: {error}") from None
        return [(each["metric"], float(each["value"][1])) for each in found["data"]["result"]]

    def empty(self, dashboards: Sequence[Path]) -> list[str]:
        """Return the queries of dashboards that have no number now, with their dashboard and panel."""
        return [
            f"{path.stem}: {panel['title']}: {target['expr']}"
            for path in dashboards
            for panel in json.loads(path.read_text())["panels"]
            for target in panel["targets"]
            if all(math.isnan(value) for _, value in self.query(_of_all(target["expr"])))
        ]


def _of_all(expression: str) -> str:
    for name, value in ALL.items():
        expression = expression.replace(name, value)
    return expression


class Receiver:
    """An HTTP server that keeps the alerts it is sent."""

    def __init__(self) -> None:
        alerts: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                alerts.extend(body["alerts"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.alerts = alerts
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def named(self, alert: str) -> list[dict[str, Any]]:
        """Return the alerts of a name that fire, as they were sent."""
        return [each for each in self.alerts if each["labels"]["alertname"] == alert and each["status"] == "firing"]


class Alertmanager(_Server):
    """Sends every alert to ``receiver``; waits ``group_wait`` for more alerts of a group."""

    def __init__(self, directory: Path, receiver: str, *, group_wait: str) -> None:
        directory.mkdir(exist_ok=True)
        [port] = free_ports(1)
        route = {"receiver": "test", "group_by": ["alertname"], "group_wait": group_wait}
        config = {"route": route, "receivers": [{"name": "test", "webhook_configs": [{"url": receiver}]}]}
        file = directory / "alertmanager.yaml"
        file.write_text(yaml.safe_dump(config))
        command = [program("prometheus-alertmanager"), f"--config.file={file}", f"--storage.path={directory / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        super().__init__(command, port, directory / "alertmanager.log")
