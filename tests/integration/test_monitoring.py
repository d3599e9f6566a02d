"""Prometheus scrapes a real broker under load: no panel is empty, and the alert of a quota reaches who is to know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest
import yaml

from tests.support.broker_process import BrokerProcess
from tests.support.clients import connect
from tests.support.monitoring import Alertmanager, Prometheus, Receiver
from tests.support.polling import eventually
from tests.support.rest import apply

_CHART = Path(__file__).resolve().parents[2] / "charts" / "heliograph"
_ALERT = "HeliographBacklogQuotaExceeded"
_TOPIC = "persistent://public/default/orders"
#: From the breach of a quota until somebody is notified, at most.
_NOTIFIED_WITHIN_S = 120.0
#: What Prometheus Operator's and Alertmanager's own defaults add to the chart's.
_GROUP_WAIT_S = 30


@contextmanager
def _load(broker: BrokerProcess) -> Iterator[None]:
    """Publish and consume until left; some of the messages stay, so that there are backlogs."""
    stop = threading.Event()
    failed: list[Exception] = []

    def work() -> None:
        try:
            with closing(connect(broker.service_url)) as client:
                consumer = client.subscribe(_TOPIC, "billing", consumer_type=pulsar.ConsumerType.Shared)
                producer = client.create_producer(_TOPIC)
                while not stop.wait(0.01):
                    producer.send(b"x" * 100)
                    consumer.acknowledge(consumer.receive(60_000))
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


def _target(broker: BrokerProcess) -> dict[str, tuple[str, dict[str, str]]]:
    """Return the broker as a target with the labels that the chart's ServiceMonitor gives it."""
    labels = {"heliograph_dev_service": "metrics", "kubernetes_namespace": "team", "pod": "main-0"}
    return {"main-metrics": (urlsplit(broker.http_url).netloc, labels)}


def _limited(broker: BrokerProcess, size: str) -> BrokerProcess:
    """Start a broker whose topic has a quota of each kind and a message TTL."""
    broker.start()
    quota = {
        "destinationStorage": {"limit": size, "policy": "producer_exception"},
        "messageAge": {"limit": "1h", "policy": "producer_exception"},
    }
    spec = {
        "namespaceRef": {"name": "public/default"},
        "messageTTL": "1h",
        "subscriptions": ["audit"],
        "backlogQuota": quota,
    }
    apply(broker.http_url, {"kind": "Topic", "metadata": {"name": "orders"}, "spec": spec})
    return broker


def _publish_many(producer: pulsar.Producer) -> None:
    for _ in range(1000):
        producer.send(b"x" * 1000)


def test_no_panel_is_empty_while_a_broker_is_under_load(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    dashboards = sorted(path for path in (_CHART / "dashboards").glob("*.json") if path.stem != "heliograph-operator")
    assert len(dashboards) == 4
    limited = _limited(broker_factory(), "1Gi")
    with Prometheus(tmp_path / "prometheus", _target(limited)) as prometheus, _load(limited):
        empty: list[str] = ["none was asked"]

        def full() -> bool:
            empty[:] = prometheus.empty(dashboards)
            return not empty

        try:
            eventually(full, within_s=180, what="every query has a number", every_s=1.0)
        except AssertionError:
            raise AssertionError("without a number: " + "\n".join(empty)) from None


def test_an_exceeded_quota_is_notified_within_two_minutes(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    limited = _limited(broker_factory(), "50Ki")
    # The rules as they are, evaluated as often as the broker is scraped here.
    rules = yaml.safe_load((_CHART / "alerts" / "broker.yaml").read_text())
    for group in rules["groups"]:
        group["interval"] = "5s"
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rules))
    with (
        Receiver() as receiver,
        Alertmanager(tmp_path / "alertmanager", receiver.url, group_wait="5s") as alertmanager,
        Prometheus(
            tmp_path / "prometheus", _target(limited), every="5s", rules=[file], alertmanager=alertmanager.url
        ) as prometheus,
        closing(connect(limited.service_url)) as client,
    ):
        scraped = "heliograph_backlog_quota_exceeded"
        eventually(lambda: prometheus.query(scraped), what="the broker was scraped", every_s=0.5)
        assert {value for _, value in prometheus.query(scraped)} == {0.0}
        assert receiver.named(_ALERT) == []
        producer = client.create_producer(_TOPIC, batching_enabled=False)
        # Until the broker refuses: the quota is exceeded.
        with pytest.raises(pulsar.PulsarException):
            _publish_many(producer)
        breached = time.monotonic()
        [alert, *_] = eventually(
            lambda: receiver.named(_ALERT), within_s=_NOTIFIED_WITHIN_S, what="the receiver has the alert", every_s=0.2
        )
        print(f"notified {time.monotonic() - breached:.1f} s after the breach")
    assert alert["labels"]["topic"] == _TOPIC
    assert (alert["labels"]["quota_type"], alert["labels"]["severity"]) == ("size", "critical")
    assert alert["labels"]["kubernetes_namespace"] == "team"
    assert _TOPIC in alert["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"].endswith(f"/{_ALERT}.md")


def test_the_charts_defaults_notify_within_two_minutes_too() -> None:
    values = yaml.safe_load((_CHART / "values.yaml").read_text())["metrics"]
    [group] = yaml.safe_load((_CHART / "alerts" / "broker.yaml").read_text())["groups"]
    [rule] = [each for each in group["rules"] if each["alert"] == _ALERT]
    times = [values["serviceMonitor"]["interval"], group["interval"], rule.get("for", "0s")]
    assert all(each.endswith("s") for each in times)
    assert sum(int(each[:-1]) for each in times) + _GROUP_WAIT_S <= _NOTIFIED_WITHIN_S
