"""The chart closes no BrokerCluster that exists and is open, unless its clients can go on or somebody says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .conftest import CHART, KUBERNETES, Helm

_GROUP = "/apis/heliograph.dev/v1alpha1"
_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "heliograph.dev/v1alpha1",
    "resources": [{"name": "brokerclusters", "kind": "BrokerCluster", "namespaced": True, "verbs": ["get"]}],
}
GO_ON = {"config": {"anonymous_role": "before"}, "authentication": {"superusers": ["before"]}}
OPENED = {"authentication": {"enabled": False}}


@contextmanager
def api_server(spec: dict[str, Any] | None) -> Iterator[str]:
    """Run what helm asks of an API server; its BrokerCluster ``default`` has this spec (None: there is none)."""
    found = {
        "kind": "BrokerCluster",
        "apiVersion": "heliograph.dev/v1alpha1",
        "metadata": {"name": "default", "namespace": "here"},
        "spec": spec,
    }
    answers: dict[str, Any] = {_GROUP: _RESOURCES}
    if spec is not None:
        answers[f"{_GROUP}/namespaces/here/brokerclusters/default"] = found

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            self.send_response(200 if answer is not None else 404)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer if answer is not None else gone).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def problem(helm: Helm, directory: Path, live: dict[str, Any] | None, spec: dict[str, Any] | None = None) -> str:
    """Return why helm refuses the chart for a live BrokerCluster; empty if it does not."""
    with api_server(live) as url:
        cluster = {"clusters": [{"name": "x", "cluster": {"server": url}}], "users": [{"name": "x", "user": {}}]}
        context = {"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "current-context": "x"}
        file = directory / "kubeconfig"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **cluster, **context}), encoding="utf-8")
        done = helm.run(
            "template",
            "main",
            str(CHART),
            "--namespace=here",
            f"--kube-version={KUBERNETES}",
            "--dry-run=server",
            "--api-versions=heliograph.dev/v1alpha1/BrokerCluster",
            f"--kubeconfig={file}",
            values={"defaultCluster": {"spec": spec or {}}},
        )
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


def test_an_open_brokercluster_is_not_closed_without_a_word(helm: Helm, tmp_path: Path) -> None:
    refused = problem(helm, tmp_path, {"storage": {"size": "10Gi"}})
    assert "BrokerCluster default exists and is open" in refused
    assert "--set defaultCluster.spec.authentication.enabled=false" in refused
    assert "defaultCluster.spec.config.anonymous_role" in refused


@pytest.mark.parametrize(
    ("live", "spec"),
    [
        pytest.param(None, None, id="new"),
        pytest.param({"authentication": {"enabled": True}}, None, id="closed"),
        pytest.param({}, OPENED, id="stays open"),
        pytest.param({}, GO_ON, id="its clients go on"),
        pytest.param({**GO_ON, "authentication": {"enabled": True}}, None, id="its clients have tokens"),
    ],
)
def test_everything_else_is_installed(
    helm: Helm, tmp_path: Path, live: dict[str, Any] | None, spec: dict[str, Any] | None
) -> None:
    assert problem(helm, tmp_path, live, spec) == ""
