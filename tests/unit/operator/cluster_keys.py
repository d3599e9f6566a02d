"""The keys of BrokerClusters, as an operator has them that has just started."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from heliograph_operator.act.broker_tokens import BrokerTokens
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.cluster_objects import endpoints
from heliograph_operator.decide.stateful_set import Site
from heliograph_operator.objects.kinds import Body


def _now() -> datetime:
    return datetime.now(UTC)


def url_of(body: Body) -> str:
    return endpoints(body, Site("image"))["http"]


def tokens(now: Callable[[], datetime] = _now) -> BrokerTokens:
    return BrokerTokens(url_of, now)


def cluster_keys(now: Callable[[], datetime] = _now) -> ClusterKeys:
    return ClusterKeys(tokens(now), now)
