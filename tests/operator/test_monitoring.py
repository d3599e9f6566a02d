"""Prometheus scrapes a real operator: no panel of its dashboard is empty, and what is not Ready is alerted on."""

from __future__ import annotations

from pathlib import Path

from tests.support.monitoring import Prometheus
from tests.support.operator_process import OperatorProcess
from tests.support.polling import eventually

from .resources import Resources

_CHART = Path(__file__).resolve().parents[2] / "charts" / "heliograph"
_NOT_READY = "heliograph_resource_not_ready_since_timestamp_seconds"


def test_no_panel_of_the_operator_is_empty(served: Resources, operator: OperatorProcess, tmp_path: Path) -> None:
    served.family()
    # No node can run its pod: the broker that is missing has no target.
    served.apply("BrokerCluster", "lonely", {"storage": {"size": "1Gi"}, "image": "localhost/not-there:1"})
    served.apply("Topic", "orphan", {"namespaceRef": {"name": "nowhere"}})
    target = {"main-operator": (f"127.0.0.1:{operator.port}", {"namespace": "heliograph", "pod": "operator"})}
    rules = _CHART / "alerts" / "operator.yaml"
    with Prometheus(tmp_path / "prometheus", target, rules=[rules]) as prometheus:
        empty: list[str] = ["none was asked"]

        def full() -> bool:
            empty[:] = prometheus.empty([_CHART / "dashboards" / "heliograph-operator.json"])
            return not empty

        try:
            eventually(full, within_s=180, what="every query has a number", every_s=1.0)
        except AssertionError:
            raise AssertionError("without a number: " + "\n".join(empty)) from None

        def of_kind(kind: str) -> dict[tuple[str, str], str]:
            found = prometheus.query(f'{_NOT_READY}{{kind="{kind}",namespace="{served.namespace}"}}')
            return {(labels["namespace"], labels["name"]): labels["reason"] for labels, _ in found}

        orphan = {(served.namespace, "orphan"): "ParentMissing"}
        eventually(lambda: of_kind("Topic") == orphan, what="only the orphan is not Ready", every_s=0.5)
        missing = f'heliograph_cluster_brokers{{state="desired",cluster="lonely",namespace="{served.namespace}"}} == 1'
        missing += ' unless ignoring(state) heliograph_cluster_brokers{state="ready"} > 0'
        eventually(lambda: prometheus.query(missing), what="the missing broker is counted", every_s=0.5)
        pending = f'ALERTS{{alertname="HeliographBrokersMissing",cluster="lonely",namespace="{served.namespace}"}}'
        eventually(lambda: prometheus.query(pending), within_s=180, what="the alert is pending", every_s=0.5)
