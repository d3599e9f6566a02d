"""The settings of the operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_api import __version__

#: The default image of brokers.
BROKER_IMAGE: Final = f"heliograph/broker:{__version__}"
#: The default image of archive jobs.
ARCHIVE_IMAGE: Final = f"heliograph/spark:{__version__}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Without ``namespaces``, the operator watches all Kubernetes namespaces."""

    namespaces: tuple[str, ...] = ()
    #: Address for /healthz, /readyz and /metrics (``*``: all, of IPv4 and of IPv6); port 0 takes a free one.
    bind: str = "*"
    port: int = 8090
    #: Resources of one BrokerCluster that are reconciled at the same time.
    workers: int = 16
    #: Time (s) between two listings of a broker, which find drift and refresh the status.
    refresh_s: float = 15.0
    #: Time (s) after which a resource is reconciled again even if nothing seems to have changed.
    resync_s: float = 300.0
    #: Time (s) after which a deletion with ``deletionWhenUnreachable: Orphan`` ends without its broker.
    deletion_wait_s: float = 600.0
    #: Time (s) for which changes of one broker are collected into a batch.
    batch_s: float = 0.05
    #: The image of brokers whose resource names none.
    broker_image: str = BROKER_IMAGE
    #: Whether Topics may have archives where their BrokerCluster allows it; if not, no CronJob is read or written.
    archives: bool = False
    #: The image of archive jobs whose Topic names none.
    archive_image: str = ARCHIVE_IMAGE
    #: The ServiceAccount of archive jobs whose Topic names none; empty: that of the namespace, without a token.
    archive_service_account: str = ""
    #: The DNS domain of the Kubernetes cluster.
    cluster_domain: str = "cluster.local"
    #: Whether pods run as the user of the images; otherwise as one that the Kubernetes cluster assigns.
    fixed_user: bool = True
    #: Name of the Lease for leader election; empty: this operator always leads.
    lease: str = ""
    #: The Kubernetes namespace of the Lease, and of the operator itself.
    operator_namespace: str = "default"
    #: Name of this operator in Leases and Events.
    identity: str = "heliograph-operator"
