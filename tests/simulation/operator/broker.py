"""A simple model of a broker's admin API, with all that resources stand for; it refuses what brokers refuse."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import msgspec
import yaml
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import (
    BrokerState,
    NamespaceState,
    SubscriptionState,
    TenantState,
    TopicState,
)
from heliograph_api.resources.metadata import OTHER_SUBSCRIPTIONS
from heliograph_api.resources.model import KINDS, Namespace, Subscription, Tenant, Topic
from heliograph_api.values.names import NamespaceName, SubscriptionName, TopicName

from .requests import NoAnswer, exchange

T = TypeVar("T")
Path = tuple[str, str]
"""Kind and full name."""


@dataclass
class ModelTopic:
    partitions: int
    policies: Policies
    properties: dict[str, str] = field(default_factory=dict)
    #: The messages that each subscription has not acknowledged.
    subscriptions: dict[str, int] = field(default_factory=dict)
    messages: int = 0


class Change(NamedTuple):
    """A change of one object: what it became (None: nothing), and by which resource (empty: by somebody else)."""

    at: float
    now: Any
    by: str


class Watchful(Protocol):
    """Gets the changes that operators make in a broker."""

    def applied(self, broker: ModelBroker, kind: str, name: str, resource: str, operator: Any) -> None:
        """Resource ``namespace/name`` of a kind was applied to the object ``name``."""

    def deleted(self, broker: ModelBroker, deletion: Deletion, protected: dict[str, str], operator: Any) -> None:
        """Something was deleted; ``protected`` are the topics that had to stay when it was asked for."""

    def confirmed(self, broker: ModelBroker, path: Path, operator: Any) -> None:
        """``operator`` got the answer that what it deleted is gone."""

    def protected(self, broker: ModelBroker, path: Path, operator: Any) -> dict[str, str]:
        """Return the topics that must stay when ``operator`` deletes something, and why."""


@dataclass(frozen=True)
class Deletion:
    """One deletion of an operator, and the messages that went with it, by topics and subscriptions."""

    kind: str
    name: str
    force: bool
    lost: dict[str, int]


class ModelBroker:
    """One broker. Its data stays when it is away."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.tenants: dict[str, TenantState] = {"public": TenantState([], ["standalone"], Policies())}
        self.namespaces: dict[str, NamespaceState] = {"public/default": NamespaceState(4, Policies())}
        self.topics: dict[str, ModelTopic] = {}
        self.defaults = Policies()
        self.limits = Policies()
        self.away = False
        #: Whether it takes requests and never answers.
        self.silent = False
        #: Whether it refuses topics that operators create.
        self.full = False
        #: All changes of each object, oldest first.
        self.log: dict[Path, list[Change]] = {}

    def state(self) -> BrokerState:
        topics = {
            name: TopicState(
                topic.partitions,
                topic.policies,
                dict(topic.properties),
                [],
                sorted(topic.subscriptions),
                subscription_states={
                    name: SubscriptionState(messages=messages) for name, messages in topic.subscriptions.items()
                },
                backlog_messages=topic.messages,
                storage_bytes=topic.messages * 100,
            )
            for name, topic in self.topics.items()
        }
        return BrokerState("4.0", self.defaults, self.limits, dict(self.tenants), dict(self.namespaces), topics)

    def apply(self, text: str) -> list[tuple[str, str, str]]:
        """Apply all manifests or none; return kind, full name and resource of each."""
        documents = list(yaml.safe_load_all(text))
        found = [(document, KINDS[document["kind"]].model_validate(document)) for document in documents]
        for document, model in found:
            self._check(document, model)
        done = []
        for document, model in found:
            metadata = document["metadata"]
            resource = f"{document['kind']} {metadata['namespace']}/{metadata['name']}"
            before = self._subscription_policies()
            if name := self._put(document, model, resource):
                done.append((document["kind"], name, resource))
            after = self._subscription_policies()
            changed = [each for each in before.keys() | after.keys() if before.get(each) != after.get(each)]
            for each in sorted(changed):
                if each != name:
                    self.note("Subscription", each, resource)
                    done.append(("Subscription", each, resource))
        return done

    def _subscription_policies(self) -> dict[str, Policies]:
        """Return the policies of single subscriptions by their full names."""
        return {
            f"{topic}/subscription/{name}": own
            for topic, found in self.topics.items()
            for name, own in (found.policies.subscription_policies or {}).items()
        }

    def _check(self, document: dict[str, Any], model: Any) -> None:
        spec = document["spec"]
        if isinstance(model, Namespace) and spec["tenantRef"]["name"] not in self.tenants:
            raise AdminRefused(412, f"Tenant {spec['tenantRef']['name']} does not exist")
        if isinstance(model, Subscription) and spec["topicRef"]["name"] not in self.topics:
            raise AdminRefused(412, f"there is no Topic {spec['topicRef']['name']}")
        if isinstance(model, Topic):
            if spec["namespaceRef"]["name"] not in self.namespaces:
                raise AdminRefused(404, f"Namespace {spec['namespaceRef']['name']} does not exist")
            topic = self.topics.get(_full_name(document))
            if topic is None and self.full:
                raise AdminRefused(412, "Exceed maximum number of topics in namespace.")
            if topic is not None and model.spec.partitions < topic.partitions:
                raise AdminRefused(409, "the number of partitions cannot shrink")

    def _put(self, document: dict[str, Any], model: Any, resource: str) -> str:
        name = _full_name(document)
        if isinstance(model, Tenant):
            allowed = model.spec.allowed_clusters or ["standalone"]
            self.tenants[name] = TenantState(list(model.spec.admin_roles), list(allowed), model.spec.limits.policies())
        elif isinstance(model, Namespace):
            self.namespaces[name] = NamespaceState(model.spec.bundles, model.spec.policies())
        elif isinstance(model, Topic):
            topic = self.topics.setdefault(name, ModelTopic(0, Policies()))
            others = json.loads(model.metadata.annotations.get(OTHER_SUBSCRIPTIONS, "[]"))
            kept = {each: own for each, own in (topic.policies.subscription_policies or {}).items() if each in others}
            topic.partitions, topic.policies = model.spec.partitions, model.spec.policies()
            topic.policies.subscription_policies = {**(topic.policies.subscription_policies or {}), **kept} or None
            topic.properties = dict(model.spec.properties)
            for subscription in model.spec.all_subscriptions:
                self._subscribe(name, subscription, resource)
        elif isinstance(model, Subscription):
            of = SubscriptionName.parse(name)
            self._subscribe(str(of.topic), of.local, resource, earliest=model.spec.position == "earliest")
            policies = self.topics[str(of.topic)].policies
            by_name = {**(policies.subscription_policies or {}), of.local: model.spec.policies()}
            policies.subscription_policies = {each: own for each, own in by_name.items() if own != Policies()} or None
            # To the topic's own resource, it is a change by another one.
            self.note("Topic", str(of.topic), resource)
        else:
            self.defaults, self.limits = model.spec.broker_defaults.policies(), model.spec.limits.policies()
            return ""
        self.note(model.kind, name, resource)
        return name

    def _subscribe(self, topic: str, subscription: str, by: str, *, earliest: bool = False) -> None:
        found = self.topics[topic]
        if subscription not in found.subscriptions:
            found.subscriptions[subscription] = found.messages if earliest else 0
            self.note("Subscription", str(SubscriptionName(TopicName.parse(topic), subscription)), by)

    def subscribe(self, topic: str, subscription: str) -> None:
        """Let a client subscribe to a topic that exists."""
        if topic in self.topics:
            self._subscribe(topic, subscription, "")

    def drift(self, topic: str, ttl_ms: int) -> None:
        """Let somebody replace all policies of a topic that exists, also those of its subscriptions."""
        if topic in self.topics:
            self.topics[topic].policies = Policies(message_ttl_ms=ttl_ms)
            self.note("Topic", topic)
            for subscription in self.topics[topic].subscriptions:
                self.note("Subscription", f"{topic}/subscription/{subscription}")

    def publish(self, topic: str, messages: int) -> None:
        """Store messages, which no subscription acknowledges."""
        if topic not in self.topics:
            self.topics[topic] = ModelTopic(0, msgspec.structs.replace(self.defaults))
            self.note("Topic", topic)
        found = self.topics[topic]
        found.messages += messages
        for subscription in found.subscriptions:
            found.subscriptions[subscription] += messages

    def _delete_subscription(self, name: str, *, force: bool) -> Deletion:
        of = SubscriptionName.parse(name)
        topic = self.topics.get(str(of.topic))
        if topic is None or of.local not in topic.subscriptions:
            raise AdminRefused(404, f"Subscription {name} does not exist")
        lost = topic.subscriptions.pop(of.local)
        by_name = dict(topic.policies.subscription_policies or {})
        by_name.pop(of.local, None)
        topic.policies.subscription_policies = by_name or None
        self.note("Subscription", name, "a deletion")
        return Deletion("Subscription", name, force, {name: lost} if lost else {})

    def delete(self, kind: str, name: str, *, force: bool) -> Deletion:
        """Delete an object; with ``force`` and all that is in it."""
        below: list[Path] = []
        if kind == "Subscription":
            return self._delete_subscription(name, force=force)
        if kind == "Topic":
            if name not in self.topics:
                raise AdminRefused(404, f"Topic {name} does not exist")
        elif kind == "Namespace":
            if name not in self.namespaces:
                raise AdminRefused(404, f"Namespace {name} does not exist")
            below = [("Topic", topic) for topic in self.topics if _namespace_of(topic) == name]
        else:
            if name not in self.tenants:
                raise AdminRefused(404, f"Tenant {name} does not exist")
            spaces = [space for space in self.namespaces if space.split("/")[0] == name]
            below = [("Topic", topic) for topic in self.topics if _namespace_of(topic) in spaces]
            below += [("Namespace", space) for space in spaces]
        if below and not force:
            raise AdminRefused(409, f"{kind} {name} is not empty")
        lost: dict[str, int] = {}
        for each, which in [*below, (kind, name)]:
            if each == "Topic":
                for subscription in list(self.topics[which].subscriptions):
                    of = str(SubscriptionName(TopicName.parse(which), subscription))
                    lost |= self._delete_subscription(of, force=force).lost
                topic = self.topics.pop(which)
                if topic.messages:
                    lost[which] = topic.messages
            elif each == "Namespace":
                del self.namespaces[which]
            else:
                del self.tenants[which]
            self.note(each, which, "a deletion")
        return Deletion(kind, name, force, lost)

    def present(self, kind: str, name: str) -> Any:
        """Return what histories set of an object, None if there is none."""
        if kind == "Subscription":
            of = SubscriptionName.parse(name)
            found = self.topics.get(str(of.topic))
            if found is None or of.local not in found.subscriptions:
                return None
            return ((found.policies.subscription_policies or {}).get(of.local, Policies()).message_ttl_ms,)
        if kind == "Topic":
            topic = self.topics.get(name)
            return topic and (topic.partitions, topic.policies.message_ttl_ms)
        if kind == "Namespace":
            space = self.namespaces.get(name)
            return space and (space.policies.message_ttl_ms,)
        tenant = self.tenants.get(name)
        return tenant and tuple(tenant.admin_roles)

    def note(self, kind: str, name: str, by: str = "") -> None:
        """Record what an object became."""
        now = asyncio.get_running_loop().time()
        self.log.setdefault((kind, name), []).append(Change(now, self.present(kind, name), by))

    def states_since(self, kind: str, name: str, at: float) -> list[Any]:
        """Return what an object was at ``at`` or later."""
        changes = self.log.get((kind, name), [])
        first = max((number for number, change in enumerate(changes) if change.at <= at), default=0)
        return [change.now for change in changes[first:]]


class ModelClient:
    """Stands in for :class:`heliograph_api.admin.admin_client.AdminClient`, for one life of an operator."""

    def __init__(
        self, find: Callable[[], ModelBroker | None], watchful: Watchful, operator: Any, rng: random.Random
    ) -> None:
        self._find = find
        self._watchful = watchful
        self._operator = operator
        self._rng = rng

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def state(self) -> BrokerState:
        return await self._asked(lambda broker: broker.state())

    async def apply(self, text: str) -> list[dict[str, Any]]:
        def effect(broker: ModelBroker) -> list[dict[str, Any]]:
            for kind, name, resource in broker.apply(text):
                self._watchful.applied(broker, kind, name, resource, self._operator)
            return []

        self._operator.sends()
        return await self._asked(effect)

    async def delete_topic(self, topic: TopicName, *, force: bool = False) -> None:
        await self._delete("Topic", str(topic), force)

    async def delete_subscription(self, subscription: SubscriptionName, *, force: bool = False) -> None:
        await self._delete("Subscription", str(subscription), force)

    async def delete_namespace(self, namespace: NamespaceName, *, force: bool = False) -> None:
        await self._delete("Namespace", str(namespace), force)

    async def delete_tenant(self, tenant: str, *, force: bool = False) -> None:
        await self._delete("Tenant", tenant, force)

    async def _delete(self, kind: str, name: str, force: bool) -> None:
        found = self._find()
        protected = self._watchful.protected(found, (kind, name), self._operator) if found is not None else {}

        def effect(broker: ModelBroker) -> None:
            self._watchful.deleted(broker, broker.delete(kind, name, force=force), protected, self._operator)

        self._operator.sends()
        await self._asked(effect)
        if found is not None:
            self._watchful.confirmed(found, (kind, name), self._operator)

    async def _asked(self, effect: Callable[[ModelBroker], T]) -> T:
        def back() -> None:
            self._reach()

        return await exchange(lambda: self._rng.choice((0.001, 0.005, 0.05, 0.3)), lambda: effect(self._reach()), back)

    def _reach(self) -> ModelBroker:
        """Return the broker if a request or its answer passes."""
        if self._operator.dead:
            raise NoAnswer
        broker = self._find()
        if broker is not None and broker.silent:
            raise NoAnswer
        if broker is None or broker.away:
            raise AdminUnreachable("connection refused")
        return broker


def _full_name(document: dict[str, Any]) -> str:
    spec = document["spec"]
    own = spec.get("name") or document["metadata"]["name"]
    if document["kind"] == "Namespace":
        return f"{spec['tenantRef']['name']}/{own}"
    if document["kind"] == "Topic":
        kind = "persistent" if spec.get("persistent", True) else "non-persistent"
        return f"{kind}://{spec['namespaceRef']['name']}/{own}"
    if document["kind"] == "Subscription":
        return str(SubscriptionName(TopicName.parse(spec["topicRef"]["name"]), str(own)))
    return str(own)


def _namespace_of(topic: str) -> str:
    return topic.partition("://")[2].rpartition("/")[0]
