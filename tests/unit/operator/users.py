"""Users on a BrokerCluster with authentication, their reconciler, and a broker that grants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from heliograph_api.admin.admin_client import AdminRefused
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.broker_state import NamespaceState, TopicState
from heliograph_api.resources.role_state import (
    RoleSettings,
)
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.resource import Resource
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_grants import (
    Change,
    NamespaceGrant,
    TopicGrant,
)
from heliograph_operator.objects.conditions import condition
from heliograph_operator.objects.kinds import FINALIZER, Body, Key
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.user.user_reconciler import UserReconciler

from .api_server import resource_of
from .bodies import body
from .cluster_keys import cluster_reconciler, tokens
from .installation import Broker, OneBroker, Server

CLUSTER = Key("BrokerCluster", "team", "main")
USER = Key("User", "team", "billing")
SECRET = Key("Secret", "team", "billing-token")
ORDERS = "persistent://shop/payments/orders"
TOKEN: dict[str, Any] = {"authentication": [{"token": {"validity": "30d", "rotateBefore": "7d"}}]}
PRODUCE: dict[str, Any] = {
    "permissions": [{"namespace": "shop/payments", "topics": "orders-*", "actions": ["produce"]}]
}
DAY = timedelta(days=1)


def user(name: str = "billing", namespace: str = "team", **spec: Any) -> dict[str, Any]:
    made = body("User", name, {"clusterRef": {"name": "main"}, **spec}, namespace=namespace, uid=f"{namespace}-{name}")
    return made | {"metadata": made["metadata"] | {"finalizers": [FINALIZER]}}


def closed(**spec: Any) -> dict[str, Any]:
    made = body("BrokerCluster", "main", {"authentication": {"enabled": True}, **spec}, finalizers=[FINALIZER])
    urls = {
        "http": "http://main-admin.team.svc.cluster.local:8080",
        "broker": "pulsar://main.team.svc.cluster.local:6650",
    }
    return {**made, "status": {"endpoints": urls, "readyReplicas": 1}}


class Granting(Broker):
    """A broker that keeps grants as the admin API does."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces["shop/payments"] = NamespaceState(4, Policies())
        self.topics[ORDERS] = TopicState(0, Policies())
        self.granted: list[str] = []
        self.set_roles: list[str] = []

    def policies(self, namespace: str) -> dict[str, Any]:
        kept = self.namespaces[namespace].policies
        empty: dict[str, Any] = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
        kept.kept = kept.kept or {"auth_policies": deepcopy(empty)}
        found: dict[str, Any] = kept.kept["auth_policies"]
        return found

    async def grant(self, role: str, wanted: Sequence[Change]) -> None:
        self._reach()
        for each in wanted:
            self.granted.append(str(each))
            apply(self.policies, self.topics, role, each)

    async def set_role(self, role: str, settings: RoleSettings | None) -> None:
        self._reach()
        assert self.roles is not None
        self.set_roles.append(role)
        if settings is None:
            del self.roles[role]
            return
        for other, has in self.roles.items():
            if other != role and (shared := {*settings.identities} & {*has.identities}):
                raise AdminRefused(409, f"{shared} prove the role {other} already")
        self.roles[role] = settings


def apply(policies: Any, topics: Any, role: str, each: Change) -> None:
    """Change grants as the admin API does."""
    if isinstance(each, NamespaceGrant):
        roles = policies(each.namespace)["namespace_auth"]
        roles.pop(role, None) if not each.actions else roles.update({role: list(each.actions)})
    elif isinstance(each, TopicGrant):
        of_topics = policies(each.topic.partition("://")[2].rpartition("/")[0])["destination_auth"]
        is_known = each.topic in topics or (not each.actions and each.topic in of_topics)
        if not each.topic.endswith("*") and not is_known:
            raise AdminRefused(404, f"Topic {each.topic} not found")
        roles = of_topics.setdefault(each.topic, {})
        roles.pop(role, None) if not each.actions else roles.update({role: list(each.actions)})
        if not roles:
            del of_topics[each.topic]
    else:
        named = policies(each.namespace)["subscription_auth_roles"]
        left = list(each.roles) or [name for name in named[each.subscription] if name != role]
        named[each.subscription] = left
        if not left:
            del named[each.subscription]


class Team:
    """An API server, a broker, and an operator that keeps its memory."""

    def __init__(self, *bodies: Body, cluster: Body | None = None) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.server = Server(cluster or closed(), *bodies)
        self.broker = Granting()
        self.tokens = tokens(lambda: self.now)
        self.keys = ClusterKeys(self.tokens, lambda: self.now)
        self.trust = BrokerTrust()

    async def reconcile(self, key: Key = USER, *, keys: bool = True) -> Outcome:
        """Reconcile the BrokerCluster's keys and one User."""
        context = self.context()
        if keys and key.namespace == "team":
            await self._cluster(context)
        return await self._users().reconcile(context, resource_of(context, key))

    def kept(self, key: Key = USER) -> tuple[Resource, Callable[[], Awaitable[Outcome]]]:
        """Return a User, and a function that reconciles it as an operator that remembers the times before."""
        context = self.context()
        resource = resource_of(context, key)
        return resource, partial(self._users().reconcile, context, resource)

    def _users(self) -> UserReconciler:
        return UserReconciler(OneBroker(self.broker), self.tokens, self.roles, self.trust, lambda: self.now)

    def context(self) -> Context:
        context = self.server.context()
        self.roles = UserRoles()
        for key in context.cache.keys(""):
            found = context.cache.get(key)
            assert found is not None
            self.tokens.seen(None, found)
            self.roles.seen(None, found)
        return context

    async def _cluster(self, context: Context) -> None:
        before = self.server.objects[CLUSTER]
        reconciler = cluster_reconciler(OneBroker(self.broker), self.keys)
        await reconciler.reconcile(context, resource_of(context, CLUSTER))
        self.server.objects[CLUSTER] = before

    def condition(self, kind: str = "Ready", key: Key = USER) -> tuple[str, str, str]:
        found = condition(self.server.objects[key].get("status", {}), kind)
        return found.get("status", ""), found.get("reason", ""), found.get("message", "")

    def entries(self, key: Key = SECRET) -> dict[str, str]:
        return decoded(self.server.objects[key])


# -- grants --------------------------------------------------------------------------------------------------------
