"""What the operator counts of itself, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry(auto_describe=True)

RECONCILES: Final = Counter(
    "heliograph_operator_reconciles",
    "Looks at resources, by their outcome: ready, waiting, failed",
    ["kind", "result"],
    registry=REGISTRY,
)
RECONCILE_SECONDS: Final = Histogram(
    "heliograph_operator_reconcile_duration_seconds",
    "Time a look at a resource took",
    ["kind"],
    buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0),
    registry=REGISTRY,
)
QUEUE: Final = Gauge("heliograph_operator_queue_length", "Resources that are due to be looked at", registry=REGISTRY)
WORKING: Final = Gauge("heliograph_operator_working", "Resources that are being looked at", registry=REGISTRY)
RESOURCES: Final = Gauge("heliograph_operator_resources", "Resources that are known", ["kind"], registry=REGISTRY)
DRIFT: Final = Counter(
    "heliograph_operator_drift_repaired", "Fields of brokers that were set right again", ["kind"], registry=REGISTRY
)
BROKER_ATTEMPTS: Final = Counter(
    "heliograph_operator_broker_requests",
    "Requests to brokers, by their outcome: ok, refused, unreachable",
    ["operation", "result"],
    registry=REGISTRY,
)
KUBE_REQUESTS: Final = Counter(
    "heliograph_operator_kubernetes_requests",
    "Requests to the API server by the permission they need, without watches",
    ["verb", "group", "resource"],
    registry=REGISTRY,
)
LEADER: Final = Gauge("heliograph_operator_leader", "1 if this operator leads", registry=REGISTRY)
