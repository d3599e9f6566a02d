"""The metric of decisions about clients' rights."""

from __future__ import annotations

from heliograph_broker.security.authorization.authorizer import Authorizer

from .exposition import Block, Sample, labels


def decision_blocks(authorizer: Authorizer | None, cluster: str) -> list[Block]:
    """Return the decisions since the start, by what was needed; nothing while authorization is off."""
    if authorizer is None:
        return []
    samples: list[Sample] = [
        ("", labels(cluster=cluster, need=need, allowed=allowed), counts[need])
        for allowed, counts in (("true", authorizer.allowed), ("false", authorizer.denied))
        for need in counts
    ]
    return [Block("heliograph_authorization_decisions_total", "total", samples)]
