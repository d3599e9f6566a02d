"""A session with an Apache Pulsar: it has neither one listing of everything nor manifests, so objects go one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from heliograph_api.admin.admin_client import AdminClient, AdminRefused
from heliograph_api.admin.admin_paths import encoded, namespace_path, tenant_path, topic_path
from heliograph_api.policies.policies import Policies
from heliograph_api.policies.policy_field import Level
from heliograph_api.resources.broker_state import BrokerState, NamespaceState, TenantState, TopicState
from heliograph_api.resources.model import KINDS, Namespace, OfBroker, Subscription, Tenant, Topic
from heliograph_api.values.names import NamespaceName, TopicName

from heliograph_operator.decide.broker_differences import differences
from heliograph_operator.decide.pulsar_policies import (
    changes,
    fitted,
    namespace_policies,
    topic_paths,
    topic_policies,
    unsupported,
)
from heliograph_operator.decide.resource_stats import ResourceStats

from .broker_sessions import BrokerSession, Listing, Manifest, StoreChanged, heliograph_state, is_missing

#: Time (s) within which a topic shows policies that were set: brokers learn of them from a system topic.
SHOWN_WITHIN_S: Final = 10.0
_AGAIN_S: Final = 0.1
#: A cluster of Pulsar that stands for all others.
_GLOBAL: Final = "global"


class PulsarListing(Listing):
    """One object of a Pulsar. Only topics have statistics: others would need a request for every topic in them."""

    def stats(self, kind: str, name: str) -> ResourceStats | None:
        """Return the statistics of a topic."""
        return super().stats(kind, name) if kind == "Topic" else None


class PulsarSession(BrokerSession):
    """The admin API of a Pulsar. ``listing`` only asks whether it answers; ``listing_of`` reads an object."""

    lists_everything = False

    def __init__(self, http_url: str, batch_s: float, deposed: Callable[[], bool], client: AdminClient) -> None:
        super().__init__(http_url, batch_s, deposed, client)
        #: The objects that were read, by kind and name.
        self._read: dict[tuple[str, str], Listing] = {}
        #: When they were found to be no Heliograph.
        self._checked_at = float("-inf")

    async def check_store(self) -> None:
        """Ask whether a Heliograph answers by now, unless it did not a moment ago; :class:`StoreChanged` if it does.

        Two Pulsars have nothing by which they differ.
        """
        if self._checked_at > self._fresh_since():
            return
        now = asyncio.get_running_loop().time()
        if (state := await heliograph_state(self._call("state", self._client.state))) is not None:
            raise StoreChanged(f"Heliograph {state.version} answers at {self.http_url}, not Apache Pulsar")
        self._checked_at = now

    async def listing(self, since: float, role: str | None = None) -> Listing:
        """Return a listing without objects."""
        self._read.clear()
        at = asyncio.get_running_loop().time()
        version = await self._call("state", self._client.broker_version)
        return PulsarListing(BrokerState(version, Policies(), Policies(), {}, {}, {}), at)

    async def listing_of(self, kind: str, name: str, since: float) -> Listing:
        """Return a listing that has one object, if it exists, and the tenant or namespace that it is in.

        A change of another object counts, too: it may be the tenant or namespace that was missing.
        """
        since = max(since, self._changed_at)
        known = self._read.get((kind, name))
        if known is not None and known.at >= since and self.reachable:
            return known
        at = asyncio.get_running_loop().time()
        found = PulsarListing(await self._call("state", lambda: self._state(kind, name)), at)
        self._read[kind, name] = found
        return found

    def unsupported(self, resource: OfBroker) -> list[str]:
        """See :func:`.pulsar_policies.unsupported`."""
        return unsupported(resource)

    def fitted(self, resource: OfBroker) -> OfBroker:
        """See :func:`.pulsar_policies.fitted`."""
        return fitted(resource)

    async def apply(self, manifest: Manifest) -> None:
        """Apply one manifest, whose parents have full names; return when the broker shows what was set."""
        model = KINDS[manifest["kind"]].model_validate(manifest)
        assert isinstance(model, Tenant | Namespace | Topic)
        model = fitted(model)
        assert not isinstance(model, Subscription)
        name = model.tenant if isinstance(model, Tenant) else ""
        if isinstance(model, Namespace):
            name = f"{model.spec.tenant_ref.name}/{model.local_name}"
        elif isinstance(model, Topic):
            name = str(model.topic_name(model.spec.namespace_ref.name))
        await self.check_store()
        try:
            await self._call("apply", lambda: self._apply(model, name))
        finally:
            self._changed_at = asyncio.get_running_loop().time()
        await self._shown(model, name)

    async def delete(self, kind: str, name: str, *, force: bool) -> None:
        """Delete an object with its data, with what is in it one by one; a missing one counts as deleted.

        Raises :class:`AdminRefused` for a Subscription, which may be one of a Heliograph that was there before.
        """
        if kind not in ("Tenant", "Namespace", "Topic"):
            raise AdminRefused(
                405,
                f"a {kind} is not deleted in an Apache Pulsar: {name}; valid: annotation heliograph.dev/managed=false"
                " on the resource, which leaves it",
            )
        try:
            if kind == "Topic":
                await self._delete(lambda: self._client.delete_topic(TopicName.parse(name), force=force))
            elif kind == "Namespace":
                if force:
                    await self._empty(name)
                await self._delete(lambda: self._client.delete_namespace(NamespaceName.parse(name)))
            else:
                if force:
                    for each in await self._listed(f"/admin/v2/namespaces/{encoded(name)}"):
                        await self.delete("Namespace", each, force=True)
                await self._delete(lambda: self._client.delete_tenant(name))
        finally:
            self._changed_at = asyncio.get_running_loop().time()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _state(self, kind: str, name: str) -> BrokerState:
        state = BrokerState("", Policies(), Policies(), {}, {}, {})
        if kind == "Tenant":
            if (tenant := await self._tenant(name)) is not None:
                state.tenants[name] = tenant
            return state
        if kind == "Namespace":
            document = await self._found(namespace_path(NamespaceName.parse(name)))
            if document is not None:
                state.namespaces[name] = NamespaceState(0, namespace_policies(document))
            parent = name.partition("/")[0]
            if document is not None or await self._tenant(parent) is not None:
                state.tenants[parent] = TenantState([], [], Policies())
            return state
        if kind == "Subscription":
            # None is managed there, see ``unsupported``.
            return state
        topic = TopicName.parse(name)
        document = await self._found(namespace_path(NamespaceName.parse(topic.namespace_name)))
        if document is None:
            return state
        of_namespace = namespace_policies(document)
        state.namespaces[topic.namespace_name] = NamespaceState(0, of_namespace)
        partitions = await self._found(f"{topic_path(topic)}/partitions")
        if partitions is not None:
            state.topics[name] = await self._topic(topic, int(partitions["partitions"]), of_namespace)
        return state

    async def _tenant(self, name: str) -> TenantState | None:
        found = await self._found(tenant_path(name))
        if found is None:
            return None
        return TenantState(sorted(found["adminRoles"] or ()), sorted(found["allowedClusters"] or ()), Policies())

    async def _topic(self, topic: TopicName, partitions: int, of_namespace: Policies) -> TopicState:
        path = topic_path(topic)
        get = self._client.request
        fields = list(topic_paths())
        stats, properties, quotas, *documents = await asyncio.gather(
            get("GET", f"{path}/partitioned-stats", params={"perPartition": "false"})
            if partitions
            else get("GET", f"{path}/stats"),
            get("GET", f"{path}/properties"),
            get("GET", f"{path}/backlogQuotaMap"),
            *(get("GET", f"{path}/{end}") for _, end in fields),
        )
        given = {field: document for (field, _), document in zip(fields, documents, strict=True)}
        state = TopicState(partitions, topic_policies(given, quotas or {}), dict(properties or {}))
        _add_stats(state, stats, of_namespace)
        return state

    async def _found(self, path: str) -> Any:
        """Return the answer to a GET, None for what does not exist."""
        try:
            return await self._client.request("GET", path)
        except AdminRefused as error:
            if error.status != 404:
                raise
            return None

    # -- changing ------------------------------------------------------------------------------------------------------

    async def _apply(self, model: Tenant | Namespace | Topic, name: str) -> None:
        state = await self._state(model.kind, name)
        if isinstance(model, Tenant):
            await self._apply_tenant(model, name, state.tenants.get(name))
        elif isinstance(model, Namespace):
            path, there = namespace_path(NamespaceName.parse(name)), state.namespaces.get(name)
            if there is None:
                await self._client.request("PUT", path, body={"bundles": {"numBundles": model.spec.bundles}})
            was = there.policies if there is not None else Policies()
            await self._change(Level.NAMESPACE, path, was, model.spec.policies())
        else:
            await self._apply_topic(model, TopicName.parse(name), state.topics.get(name))

    async def _apply_tenant(self, model: Tenant, name: str, there: TenantState | None) -> None:
        clusters = model.spec.allowed_clusters or (there.allowed_clusters if there is not None else [])
        if not clusters:
            clusters = [each for each in await self._client.request("GET", "/admin/v2/clusters") if each != _GLOBAL]
        body = {"adminRoles": model.spec.admin_roles, "allowedClusters": clusters}
        await self._client.request("PUT" if there is None else "POST", tenant_path(name), body=body)

    async def _apply_topic(self, model: Topic, topic: TopicName, there: TopicState | None) -> None:
        path, spec, request = topic_path(topic), model.spec, self._client.request
        if there is None:
            await self._client.create_topic(topic, partitions=spec.partitions)
        elif 0 < there.partitions < spec.partitions:
            await request("POST", f"{path}/partitions", body=spec.partitions)
        had = there.properties if there is not None else {}
        if added := {key: value for key, value in spec.properties.items() if had.get(key) != value}:
            await request("PUT", f"{path}/properties", body=added)
        for key in sorted(had.keys() - spec.properties.keys()):
            await request("DELETE", f"{path}/properties", params={"key": key})
        for subscription in spec.subscriptions:
            if there is None or subscription not in there.subscriptions:
                await self._subscribe(path, subscription)
        await self._change(Level.TOPIC, path, there.policies if there is not None else Policies(), spec.policies())

    async def _subscribe(self, path: str, subscription: str) -> None:
        try:
            await self._client.request("PUT", f"{path}/subscription/{encoded(subscription)}")
        except AdminRefused as error:
            # A client created it meanwhile.
            if error.status != 409:
                raise

    async def _change(self, level: Level, path: str, was: Policies, wanted: Policies) -> None:
        for change in changes(level, was, wanted):
            await self._client.request(change.method, f"{path}/{change.path}", body=change.body, params=change.params)

    async def _shown(self, model: Tenant | Namespace | Topic, name: str) -> None:
        """Wait until the broker shows an object as it was set, for a limited time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SHOWN_WITHIN_S
        while loop.time() < end:
            if not differences(model, name, (await self.listing_of(model.kind, name, loop.time())).state):
                return
            await asyncio.sleep(_AGAIN_S)

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def _delete(self, request: Callable[[], Awaitable[None]]) -> None:
        """Delete one object; a missing one counts as deleted."""
        try:
            await self._call("delete", request)
        except AdminRefused as error:
            if not is_missing(error):
                raise

    async def _listed(self, path: str) -> list[str]:
        """Return the names in an answer; none for a parent that does not exist."""
        found: list[str] = await self._call("state", lambda: self._found(path)) or []
        return found

    async def _empty(self, namespace: str) -> None:
        """Delete the topics of a namespace: few brokers allow to delete it with them."""
        for domain in ("persistent", "non-persistent"):
            partitioned = await self._listed(f"/admin/v2/{domain}/{namespace}/partitioned")
            topics = await self._listed(f"/admin/v2/{domain}/{namespace}")
            others = [each for each in topics if str(TopicName.parse(each).base) not in partitioned]
            for each in [*partitioned, *others]:
                await self._delete(partial(self._client.delete_topic, TopicName.parse(each), force=True))


def _add_stats(state: TopicState, stats: Mapping[str, Any], of_namespace: Policies) -> None:
    """Add what a topic's statistics say; quotas are the topic's own, or else its namespace's."""
    subscriptions: Mapping[str, Mapping[str, Any]] = stats.get("subscriptions") or {}
    state.subscriptions = sorted(subscriptions)
    durable = [each for each in subscriptions.values() if each.get("durable", True)]
    state.backlog_messages = max((int(each.get("msgBacklog", 0)) for each in durable), default=0)
    state.backlog_bytes = max(0, int(stats.get("backlogSize", 0)))
    state.storage_bytes = int(stats.get("storageSize", 0))
    state.producers = len(stats.get("publishers") or ())
    state.consumers = sum(len(each.get("consumers") or ()) for each in subscriptions.values())
    size = state.policies.backlog_quota_size or of_namespace.backlog_quota_size
    age = state.policies.backlog_quota_age or of_namespace.backlog_quota_age
    if size is not None and size.limit > 0:
        state.size_limit, state.size_used = size.limit, state.backlog_bytes / size.limit
        state.size_exceeded = state.backlog_bytes >= size.limit
    oldest_s = int(stats.get("oldestBacklogMessageAgeSeconds", -1))
    if age is not None and age.limit > 0:
        state.age_limit_ms, state.age_used = age.limit, max(0, oldest_s) * 1000 / age.limit
        state.age_exceeded = oldest_s * 1000 >= age.limit
