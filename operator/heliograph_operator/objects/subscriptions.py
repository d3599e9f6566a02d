"""Tells which resource a subscription belongs to: a Subscription of its own, or the Topic whose spec names it.

A Subscription that has it keeps it; one that only wants it leaves it to the Topic that names it.
"""

from __future__ import annotations

import json
from typing import Final

from heliograph_api.resources.archive_spec import SUBSCRIPTION
from heliograph_api.values.names import SubscriptionName

from .kinds import Body, Key, annotation, is_deleted, owned
from .ownership import Claim
from .resource_cache import ResourceCache

#: On a Topic: a JSON list of its subscriptions that resources left behind on purpose.
RETAINED_SUBSCRIPTIONS: Final = "retained-subscriptions"


def named_subscriptions(topic: Body) -> frozenset[str]:
    """Return the subscriptions that the spec of a Topic creates, or sets policies of."""
    spec = topic.get("spec") or {}
    names = [*(spec.get("subscriptions") or ()), *(each["name"] for each in spec.get("subscriptionPolicies") or ())]
    return frozenset([*names, SUBSCRIPTION] if spec.get("archive") else names)


def retained_subscriptions(topic: Body) -> frozenset[str]:
    """Return the subscriptions that resources left behind, as noted on a Topic; a note that is no list has none."""
    try:
        noted = json.loads(annotation(topic, RETAINED_SUBSCRIPTIONS) or "[]")
    except json.JSONDecodeError:
        return frozenset()
    return frozenset(each for each in noted if isinstance(each, str)) if isinstance(noted, list) else frozenset()


def topics_that_name(cache: ResourceCache, claim: Claim) -> list[Key]:
    """Return the resources of a subscription's topic that are to stay and name the subscription in their specs.

    The owner of the topic comes first; those that are not managed are among them.
    """
    of = claim.topic
    local = SubscriptionName.parse(claim.name).local if of is not None else ""
    bodies = [(key, cache.get(key)) for key in (cache.ownership.claimants(of) if of is not None else ())]
    return [key for key, body in bodies if body and not is_deleted(body) and local in named_subscriptions(body)]


def rival_topic(cache: ResourceCache, body: Body, claim: Claim) -> Key | None:
    """Return the Topic that a Subscription has to leave its subscription to; None if it has it, or may take it."""
    if owned(body)[1] or claim.topic is None:
        return None
    owner = cache.ownership.owner(claim.topic)
    return owner if owner in topics_that_name(cache, claim) else None


def other_subscriptions(cache: ResourceCache, topic: Body, claim: Claim) -> frozenset[str]:
    """Return the subscriptions of a Topic that are not its own: it leaves them and their policies alone."""
    named, found = named_subscriptions(topic), set(retained_subscriptions(topic))
    found -= named
    for key in cache.ownership.below(claim):
        stake = cache.ownership.stake(key)
        if stake is None:
            continue
        local = SubscriptionName.parse(stake.claim.name).local
        if local not in named or (stake.established and cache.ownership.owner(stake.claim) == key):
            found.add(local)
    return frozenset(found)
