"""The operator's own watch, cache, queue and reconcilers between an API server and a broker, both in memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable
from heliograph_api.policies.grants import (
    IsOthers,
    actions_on_topic,
    auth_policies,
    keep_grants,
    with_namespace_grants,
    with_stated,
    with_topic_grants,
)
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import (
    BrokerState,
    NamespaceState,
    SubscriptionState,
    TenantState,
    TopicState,
)
from heliograph_api.resources.metadata import OTHER_ROLES, OTHER_SUBSCRIPTIONS
from heliograph_api.resources.model import KINDS, Namespace, Subscription, Tenant, Topic
from heliograph_api.resources.permission_spec import namespace_grants, topic_actions
from heliograph_api.resources.role_state import RoleSettings, RoleState
from heliograph_api.values.names import SubscriptionName, TopicName
from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions, Listing
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.act.resource_memory import ResourceMemories
from heliograph_operator.act.watch import Watcher
from heliograph_operator.act.work_queue import WorkQueue
from heliograph_operator.archive.archive_identity import ArchiveIdentity
from heliograph_operator.archive.archive_reconciler import ArchiveReconciler
from heliograph_operator.connection.connection_reconciler import ConnectionReconciler
from heliograph_operator.decide.archive_cron_job import ArchiveSite
from heliograph_operator.kube.events import Events
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import CLUSTER_KINDS, GROUP, Body, Key, Kind, is_deleted, key_of
from heliograph_operator.objects.resource_cache import ResourceCache
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.operator_settings import Settings
from heliograph_operator.policies.policy_reconciler import PolicyReconciler

from .api_server import ApiServer
from .cluster_keys import tokens


def _users(model: Namespace | Topic) -> IsOthers:
    """Return what tells the roles that the operator has noted to be those of Users."""
    return set(json.loads(model.metadata.annotations.get(OTHER_ROLES, "[]"))).__contains__


class Broker(BrokerSession):
    """A broker's tenants, namespaces, topics and subscriptions, with what deleting one takes with it."""

    def __init__(self) -> None:
        super().__init__("http://broker", 0.0)
        self.tenants = {"public": TenantState([], ["standalone"], Policies())}
        self.namespaces = {"public/default": NamespaceState(4, Policies())}
        self.topics: dict[str, TopicState] = {}
        #: Settings of roles; None: the broker does not know of such.
        self.roles: dict[str, RoleSettings] | None = {}
        #: The clients of roles; their settings are in ``roles``.
        self.clients: dict[str, RoleState] = {}
        self.started_ms = 0
        #: The positions of the subscriptions that were created for resources, by full names.
        self.positions: dict[str, str] = {}
        self.unreachable = False

    async def listing(self, since: float, role: str | None = None) -> Listing:
        self._reach()
        state = BrokerState("1", Policies(), Policies(), dict(self.tenants), dict(self.namespaces), self.topics)
        if self.roles is not None:
            state.roles = {
                role: msgspec.structs.replace(self.clients.get(role, RoleState(settings)), settings=settings)
                for role, settings in self.roles.items()
            }
            state.started_ms = self.started_ms
        return Listing(msgspec.json.decode(msgspec.json.encode(state), type=BrokerState), since)

    async def apply(self, manifest: Mapping[str, Any]) -> None:
        self._reach()
        model = KINDS[manifest["kind"]].model_validate(manifest)
        if isinstance(model, Tenant):
            allowed = model.spec.allowed_clusters or ["standalone"]
            self.tenants[model.tenant] = TenantState(model.spec.admin_roles, allowed, model.spec.limits.policies())
        elif isinstance(model, Namespace):
            name = f"{model.spec.tenant_ref.name}/{model.local_name}"
            policies = model.spec.policies()
            if (before := self.namespaces.get(name)) is not None:
                policies.kept = before.policies.kept
            if model.spec.permissions is not None:
                stated = namespace_grants(model.spec.permissions, name)
                keep_grants(policies, with_namespace_grants(auth_policies(policies), stated, _users(model)))
            self.namespaces[name] = NamespaceState(model.spec.bundles, policies)
        elif isinstance(model, Subscription):
            self._apply_subscription(model)
        else:
            assert isinstance(model, Topic)
            name = str(model.topic_name(model.spec.namespace_ref.name))
            state = self.topics.setdefault(name, TopicState(0, Policies()))
            others = json.loads(model.metadata.annotations.get(OTHER_SUBSCRIPTIONS, "[]"))
            kept = {each: own for each, own in (state.policies.subscription_policies or {}).items() if each in others}
            state.partitions, state.policies = model.spec.partitions, model.spec.policies()
            state.policies.subscription_policies = {**(state.policies.subscription_policies or {}), **kept} or None
            state.properties = dict(model.spec.properties)
            state.subscriptions = sorted({*state.subscriptions, *model.spec.all_subscriptions})
            if (schema := model.spec.schema_) is not None and schema.digest not in state.schemas:
                state.schemas.append(schema.digest)
            if model.spec.permissions is not None:
                kept_here = self.namespaces[model.spec.namespace_ref.name].policies
                roles = with_stated(
                    actions_on_topic(kept_here, name), topic_actions(model.spec.permissions), _users(model)
                )
                keep_grants(kept_here, with_topic_grants(auth_policies(kept_here), name, roles))

    def _apply_subscription(self, model: Subscription) -> None:
        topic = self.topics[model.spec.topic_ref.name]
        name = model.local_name
        if name not in topic.subscriptions:
            topic.subscriptions = sorted([*topic.subscriptions, name])
            full = str(SubscriptionName(TopicName.parse(model.spec.topic_ref.name), name))
            self.positions[full] = model.spec.position
        topic.subscription_states.setdefault(name, SubscriptionState()).properties = dict(model.spec.properties)
        by_name = {**(topic.policies.subscription_policies or {}), name: model.spec.policies()}
        by_name = {each: own for each, own in by_name.items() if own != Policies()}
        topic.policies = msgspec.structs.replace(topic.policies, subscription_policies=by_name or None)

    async def delete(self, kind: str, name: str, *, force: bool) -> None:
        self._reach()
        parts = {"Tenant": (self.tenants, f"{name}/"), "Namespace": (self.namespaces, f"://{name}/")}
        if kind == "Subscription":
            self._delete_subscription(SubscriptionName.parse(name), force=force)
            return
        if kind == "Topic":
            self.topics.pop(name, None)
            return
        objects, inside = parts[kind]
        topics = [each for each in self.topics if each.partition("://")[2].startswith(f"{name}/")]
        namespaces = [each for each in self.namespaces if kind == "Tenant" and each.startswith(inside)]
        if (topics or namespaces) and not force:
            raise AdminRefused(409, f"{name} is not empty")
        for each in topics:
            del self.topics[each]
        for each in namespaces:
            del self.namespaces[each]
        objects.pop(name, None)  # type: ignore[attr-defined]

    def _delete_subscription(self, name: SubscriptionName, *, force: bool) -> None:
        topic = self.topics.get(str(name.topic))
        if topic is None:
            return
        state = topic.subscription_states.get(name.local, SubscriptionState())
        if state.consumers and not force:
            raise AdminRefused(412, "Subscription has active connected consumers")
        topic.subscriptions = [each for each in topic.subscriptions if each != name.local]
        topic.subscription_states.pop(name.local, None)
        by_name = dict(topic.policies.subscription_policies or {})
        by_name.pop(name.local, None)
        topic.policies.subscription_policies = by_name or None

    def subscribe(self, topic: str, name: str, state: SubscriptionState | None = None) -> SubscriptionState:
        """Let clients create a subscription, or change what is known of it."""
        there = self.topics.setdefault(topic, TopicState(0, Policies()))
        there.subscriptions = sorted({*there.subscriptions, name})
        there.subscription_states[name] = state or SubscriptionState()
        return there.subscription_states[name]

    def unsubscribe(self, topic: str, name: str) -> None:
        """Let clients or the broker itself delete a subscription; its policies stay."""
        there = self.topics[topic]
        there.subscriptions = [each for each in there.subscriptions if each != name]
        there.subscription_states.pop(name, None)

    def publish(self, name: str, messages: int) -> None:
        """Store unacknowledged messages in a topic, which is created if it does not exist."""
        self.topics.setdefault(name, TopicState(0, Policies())).backlog_messages = messages

    def _reach(self) -> None:
        if self.unreachable:
            raise AdminUnreachable("connection refused")


class OneBroker(BrokerSessions):
    """Sessions with one and the same broker, whatever the URL."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(0.0)
        self._broker = broker

    def at(self, http_url: str) -> BrokerSession:
        return self._broker


class Server(ApiServer):
    """An API server whose Kubernetes namespaces stay."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.api_version == "v1" and kind.plural == "namespaces":
            return {"metadata": {"name": name}, "status": {"phase": "Active"}}
        return await super().find(kind, namespace, name)


class Installation:
    """The API server's objects and the broker: they exist before an operator starts and after it ends."""

    def __init__(self, *bodies: Body) -> None:
        self.server = Server(*bodies)
        self.broker = Broker()

    def started(
        self, order: Iterable[Key] | None = None, sessions: BrokerSessions | None = None, **settings: Any
    ) -> Operator:
        """Return an operator that has listed all resources, in this order, by default with the broker in memory."""
        listed = [self.server.objects[key] for key in order or self.server.objects if key.kind in KINDS]
        return Operator(self, listed, Settings(**settings), sessions)

    def body(self, key: Key) -> dict[str, Any]:
        return self.server.objects[key]

    def apply(self, body: Body) -> None:
        """Create a resource, or change the spec of one."""
        key = key_of(body)
        if key not in self.server.objects:
            self.server.objects[key] = dict(body)
            return
        generation = self.server.objects[key]["metadata"]["generation"] + 1
        self.server.change(key, generation=generation)
        self.server.objects[key]["spec"] = body["spec"]

    def annotate(self, key: Key, **annotations: str | None) -> None:
        """Change annotations of the project's group."""
        self.server.change(key, annotations={f"{GROUP}/{name}": value for name, value in annotations.items()})

    def delete(self, key: Key) -> None:
        """Request a deletion: without finalizers, the resource is gone at once."""
        if self.server.objects[key]["metadata"].get("finalizers"):
            self.server.change(key, deletionTimestamp=datetime.now(UTC).isoformat())
        else:
            del self.server.objects[key]

    def ready(self, key: Key) -> tuple[str, str]:
        """Return the reason and the message of the condition Ready."""
        found = condition(self.server.objects[key].get("status", {}), READY)
        return found.get("reason", ""), found.get("message", "")


class Operator:
    """An operator's parts in memory, which end with it."""

    def __init__(
        self,
        installation: Installation,
        bodies: Iterable[Body],
        settings: Settings,
        sessions: BrokerSessions | None = None,
    ) -> None:
        self._server = installation.server
        cache, queue = ResourceCache(), WorkQueue[Key]()
        self.watcher = Watcher(cache, queue)
        self.context = Context(settings, self._server, cache, ResourceMemories(), queue, Events(self._server, "test"))
        self.sessions = sessions or OneBroker(installation.broker)
        archives = ArchiveReconciler(ArchiveSite("image"), ArchiveIdentity(self.sessions, tokens(), BrokerTrust()))
        roles = UserRoles()
        cache.listeners.append(roles.seen)
        self._policies = PolicyReconciler(self.sessions, archives, roles)
        self._connections = ConnectionReconciler(self.sessions)
        for body in bodies:
            self.watcher.seen(body)

    async def settle(self) -> None:
        """Reconcile whatever is queued until nothing is due, as one worker does; take in what the server has."""
        await self._settle(without=("BrokerCluster", "User"))

    async def settle_policies(self) -> None:
        """Do the same without checks of BrokerConnections: their sessions are there, or not."""
        await self._settle(without=(*CLUSTER_KINDS, "User"))

    async def _settle(self, without: Collection[str]) -> None:
        queue = self.context.queue
        for _ in range(1000):
            self._watch()
            if not len(queue):
                return
            key = await queue.take()
            resource = self.context.resource(key)
            if resource is not None and key.kind not in without:
                await self.reconcile(resource)
            queue.done(key)
        raise AssertionError("the operator does not come to an end")

    async def reconcile(self, resource: Resource) -> Outcome:
        """Reconcile one resource once, whatever is queued."""
        of_connection = resource.key.kind == "BrokerConnection"
        reconciler = self._connections.reconcile if of_connection else self._policies.reconcile
        return await reconciler(self.context, resource)

    async def resync(self) -> None:
        """Look at every resource again, and settle."""
        for key in self.context.cache.keys(""):
            self.context.queue.add(key)
        await self.settle()

    async def resync_policies(self) -> None:
        """Look at every Tenant, Namespace and Topic again, and settle."""
        for key in self.context.cache.keys(""):
            self.context.queue.add(key)
        await self.settle_policies()

    def _watch(self) -> None:
        for key, body in list(self._server.objects.items()):
            if is_deleted(body) and not body["metadata"].get("finalizers"):
                del self._server.objects[key]
            elif key.kind in KINDS:
                self.watcher.seen(body)
        for key in self.context.cache.keys(""):
            if key not in self._server.objects:
                self.watcher.deleted(key)
