"""The keys and certificates of BrokerClusters, as an operator has them that has just started."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from heliograph_operator.act.broker_sessions import BrokerSessions
from heliograph_operator.act.broker_tokens import BrokerTokens
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.cluster.cluster_certificates import ClusterCertificates
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.cluster.cluster_reconciler import ClusterReconciler
from heliograph_operator.decide.cluster_objects import admin_urls
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.objects.kinds import Body


def _now() -> datetime:
    return datetime.now(UTC)


def url_of(body: Body) -> str:
    return admin_urls(body, Site("image"))[0]


def urls_of(body: Body) -> tuple[str, ...]:
    return admin_urls(body, Site("image"))


def tokens(now: Callable[[], datetime] = _now) -> BrokerTokens:
    return BrokerTokens(urls_of, now)


def cluster_keys(now: Callable[[], datetime] = _now) -> ClusterKeys:
    return ClusterKeys(tokens(now), now)


def cluster_reconciler(
    brokers: BrokerSessions | None = None,
    keys: ClusterKeys | None = None,
    image: str = "image",
    trust: BrokerTrust | None = None,
    now: Callable[[], datetime] = _now,
) -> ClusterReconciler:
    site = Site(image)
    certificates = ClusterCertificates(site, trust or BrokerTrust(), now)
    return ClusterReconciler(site, brokers or BrokerSessions(0.0), keys or cluster_keys(), certificates)
