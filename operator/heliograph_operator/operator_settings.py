"""What the operator can be told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_api import __version__

#: What brokers run as if nobody says another image.
BROKER_IMAGE: Final = f"heliograph/broker:{__version__}"
#: What archives' jobs run as if nobody says another image.
ARCHIVE_IMAGE: Final = f"heliograph/spark:{__version__}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Without ``namespaces`` it serves all of the cluster."""

    namespaces: tuple[str, ...] = ()
    #: Where /healthz, /readyz and /metrics are served; port 0 takes a free one.
    bind: str = "0.0.0.0"
    port: int = 8090
    #: Resources worked on at the same time.
    workers: int = 16
    #: Time (s) between two looks at each broker, which find drift and refresh the status.
    refresh_s: float = 15.0
    #: Time (s) after which a resource is reconciled again even if nothing seems to have changed.
    resync_s: float = 300.0
    #: Time (s) a deletion waits for a broker that does not answer; then the resource goes and its data stays.
    deletion_wait_s: float = 600.0
    #: Time (s) changes for one broker are collected to be sent together.
    batch_s: float = 0.05
    #: The image of brokers that name none.
    broker_image: str = BROKER_IMAGE
    #: The image of archives' jobs that name none.
    archive_image: str = ARCHIVE_IMAGE
    #: The ServiceAccount of archives' pods that name none; empty: the namespace's own, without a token.
    archive_service_account: str = ""
    #: The DNS domain of the Kubernetes cluster.
    cluster_domain: str = "cluster.local"
    #: Name of the Lease the operators elect their leader with; empty for an operator that is alone.
    lease: str = ""
    #: The Kubernetes namespace of the Lease, and of the operator itself.
    operator_namespace: str = "default"
    #: What tells this operator from others in Leases and Events.
    identity: str = "heliograph-operator"
