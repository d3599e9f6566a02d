"""A simple model of a broker's admin API, with tenants, namespaces and topics; it refuses what brokers refuse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import yaml
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TenantState, TopicState
from heliograph_api.resources.model import KINDS, Namespace, Tenant, Topic
from heliograph_api.values.names import NamespaceName, TopicName

from .requests import NoAnswer, exchange

T = TypeVar("T")
Path = tuple[str, str]
"""Kind and full name."""


@dataclass
class ModelTopic:
    partitions: int
    policies: Policies
    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: list[str] = field(default_factory=list)
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

    def protected(self, broker: ModelBroker, operator: object) -> dict[str, str]:
        """Return the topics that must stay by what ``operator`` was given, and why."""


@dataclass(frozen=True)
class Deletion:
    """One deletion of an operator, and the messages that went with it, by topic."""

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
            if name := self._put(document, model, resource):
                done.append((document["kind"], name, resource))
        return done

    def _check(self, document: dict[str, Any], model: Any) -> None:
        spec = document["spec"]
        if isinstance(model, Namespace) and spec["tenantRef"]["name"] not in self.tenants:
            raise AdminRefused(412, f"Tenant {spec['tenantRef']['name']} does not exist")
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
            topic.partitions, topic.policies = model.spec.partitions, model.spec.policies()
            topic.properties = dict(model.spec.properties)
            topic.subscriptions = sorted({*topic.subscriptions, *model.spec.all_subscriptions})
        else:
            self.defaults, self.limits = model.spec.broker_defaults.policies(), model.spec.limits.policies()
            return ""
        self.note(model.kind, name, resource)
        return name

    def delete(self, kind: str, name: str, *, force: bool) -> Deletion:
        """Delete an object; with ``force`` and all that is in it."""
        below: list[Path] = []
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
        lost = {}
        for each, which in [*below, (kind, name)]:
            if each == "Topic":
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

    async def delete_namespace(self, namespace: NamespaceName, *, force: bool = False) -> None:
        await self._delete("Namespace", str(namespace), force)

    async def delete_tenant(self, tenant: str, *, force: bool = False) -> None:
        await self._delete("Tenant", tenant, force)

    async def _delete(self, kind: str, name: str, force: bool) -> None:
        found = self._find()
        protected = self._watchful.protected(found, self._operator) if found is not None else {}

        def effect(broker: ModelBroker) -> None:
            self._watchful.deleted(broker, broker.delete(kind, name, force=force), protected, self._operator)

        self._operator.sends()
        await self._asked(effect)

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
    return str(own)


def _namespace_of(topic: str) -> str:
    return topic.partition("://")[2].rpartition("/")[0]
