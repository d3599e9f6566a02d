"""The metrics of the operator itself, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry(auto_describe=True)

RECONCILES: Final = Counter(
    "heliograph_operator_reconciles",
    "Reconciles by outcome: ready, waiting, gone, deleted, unmanaged or failed",
    ["kind", "result"],
    registry=REGISTRY,
)
RECONCILE_ERRORS: Final = Counter(
    "heliograph_operator_reconcile_errors",
    "Reconciles that failed, by the API server's reason for its refusal, or the class of the error",
    ["kind", "reason"],
    registry=REGISTRY,
)
RECONCILE_SECONDS: Final = Histogram(
    "heliograph_operator_reconcile_duration_seconds",
    "Duration of a reconcile",
    ["kind"],
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0),
    registry=REGISTRY,
)
QUEUE: Final = Gauge("heliograph_operator_queue_length", "Resources that are due to be reconciled", registry=REGISTRY)
WORKING: Final = Gauge("heliograph_operator_working", "Resources that are being reconciled", registry=REGISTRY)
DRIFT: Final = Counter(
    "heliograph_operator_drift_repaired",
    "Differences that somebody else caused and the operator repaired",
    ["kind"],
    registry=REGISTRY,
)
BROKER_ATTEMPTS: Final = Counter(
    "heliograph_operator_broker_requests",
    "Requests to brokers by outcome: ok, refused or unreachable",
    ["operation", "result"],
    registry=REGISTRY,
)
KUBE_REQUESTS: Final = Counter(
    "heliograph_operator_kubernetes_requests",
    "Requests to the API server, except watches and their listings, by the permission they need",
    ["verb", "group", "resource"],
    registry=REGISTRY,
)
LEADER: Final = Gauge("heliograph_operator_leader", "1 if this operator leads, else 0", registry=REGISTRY)
