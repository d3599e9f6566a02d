"""One session with each broker: it shares listings between reconciles and sends their changes in batches.

After a broker failed to answer, requests fail at once for a time that grows with each failure (a circuit breaker).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import structlog
from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import OfBroker
from heliograph_api.resources.role_state import RoleSettings
from heliograph_api.values.names import NamespaceName, SubscriptionName, TopicName

from heliograph_operator import operator_metrics
from heliograph_operator.decide.resource_stats import ResourceStats, stats_of, totals_of
from heliograph_operator.decide.user_grants import (
    Change,
    Grants,
    NamespaceGrant,
    SubscriptionRoles,
    TopicGrant,
    grants_by_role,
)
from heliograph_operator.objects.backoff import UNREACHABLE
from heliograph_operator.objects.targets import CONNECTION

from .role_changes import RoleChanges

log = structlog.get_logger(__name__)

T = TypeVar("T")
Manifest = Mapping[str, Any]

#: Time (s) for a broker to answer; the longest requests take a second or two.
ANSWER_S: Final = 20.0
#: Manifests in one request. The broker applies one in half a millisecond, and serves no other client meanwhile.
MAX_BATCH: Final = 32
#: Age (s) up to which a listing is shared.
FRESH_S: Final = 2.0


class Listing:
    """The state of a broker, and when (s, of the loop's clock) it was requested."""

    def __init__(self, state: BrokerState, at: float) -> None:
        self.state = state
        self.at = at

    @cached_property
    def totals(self) -> dict[str, ResourceStats]:
        """The statistics of namespaces and tenants, summed up once."""
        return totals_of(self.state)

    @cached_property
    def grants(self) -> dict[str, Grants]:
        """The grants by role, collected once."""
        return grants_by_role(self.state)

    def role(self, name: str) -> tuple[Grants, RoleSettings | None]:
        """Return the grants of a role, and what else is set for it."""
        found = (self.state.roles or {}).get(name)
        return self.grants.get(name, Grants()), found.settings if found is not None else None

    def stats(self, kind: str, name: str) -> ResourceStats | None:
        """Return the statistics of one object, None if the broker does not have it."""
        return stats_of(kind, name, self.state, self.totals)


@dataclass(slots=True)
class _Submitted:
    manifest: Manifest
    done: asyncio.Future[None]


class StoreChanged(AdminUnreachable):
    """Another store answers than the one that a session was opened with."""


class BrokerSession:
    """The admin API at one URL. Every request may raise AdminUnreachable, a change also AdminRefused.

    Changes fail once ``deposed`` returns True: another operator may lead by then. With a ``store_id``, a listing of
    another store raises :class:`StoreChanged`.
    """

    #: Whether one listing has all objects; else each is in the listing of :meth:`listing_of` only.
    lists_everything = True

    def __init__(
        self,
        http_url: str,
        batch_s: float,
        deposed: Callable[[], bool] = lambda: False,
        client: AdminClient | None = None,
        store_id: str = "",
    ) -> None:
        self.http_url = http_url
        self._store_id = store_id
        self._deposed = deposed
        self._client = client or AdminClient(http_url, deposed=deposed)
        self._opened = False
        self._batch_s = batch_s
        self._listing: Listing | None = None
        self._listing_lock = asyncio.Lock()
        self._subscriptions_lock = asyncio.Lock()
        self._failures = 0
        self._unreachable_since = 0.0
        self._paused_until = 0.0
        self._error = ""
        self._ended = False
        #: When the last change by this session ended, but for those of roles.
        self._changed_at = 0.0
        self._role_changes = RoleChanges()
        self._batches: dict[str, list[_Submitted]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def reachable(self) -> bool:
        """Whether it answered the last request."""
        return self._failures == 0

    @property
    def unreachable_s(self) -> float:
        """Seconds since it was found unreachable, 0 if it answered the last request."""
        return 0.0 if self.reachable else asyncio.get_running_loop().time() - self._unreachable_since

    @property
    def paused_s(self) -> float:
        """Seconds for which requests fail at once, because it did not answer the last one.

        A timer can fire a moment before it is due, so they are a millisecond more.
        """
        left_s = self._paused_until - asyncio.get_running_loop().time()
        return left_s + 0.001 if left_s > 0 else 0.0

    def reset(self) -> None:
        """End the pause after failures: the broker may be reachable again."""
        self._paused_until = 0.0

    async def close(self) -> None:
        """End the session and wait for its tasks; for requests not sent by then, the broker is unreachable."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for batch in self._batches.values():
            _settle(batch, self._closed())
        await self._client.__aexit__(None, None, None)

    async def listing(self, since: float, role: str | None = None) -> Listing:
        """Return a listing requested no earlier than ``since`` (s, of the loop's clock), shared between callers.

        It contains all changes this session made before the call; if one ``role`` is named, those of other roles may be
        missing: a listing for each change would make the work for many Users quadratic.
        """
        since = max(since, self._changed_at, self._role_changes.last(role))
        if self._listing is not None and self._listing.at >= since and self.reachable:
            return self._listing
        async with self._listing_lock:
            if self._listing is None or self._listing.at < since or not self.reachable:
                at = asyncio.get_running_loop().time()
                state = await self._call("state", self._client.state)
                if self._store_id and state.store_id not in ("", self._store_id):
                    self._listing = None
                    raise StoreChanged(f"store {state.store_id} answers at {self.http_url}, not {self._store_id}")
                self._listing = Listing(state, at)
                self._role_changes.listed(at)
            return self._listing

    async def recent_listing(self, since: float = 0.0, role: str | None = None) -> Listing:
        """Return a listing as :meth:`listing` does that is at most ``FRESH_S`` old."""
        return await self.listing(max(since, self._fresh_since()), role)

    async def listing_of(self, kind: str, name: str, since: float) -> Listing:
        """Return a listing as :meth:`listing` does; a broker that cannot list everything lists this one object."""
        return await self.listing(since)

    async def recent_listing_of(self, kind: str, name: str, since: float = 0.0) -> Listing:
        """Return a listing that has this object, as :meth:`recent_listing` does."""
        return await self.listing_of(kind, name, max(since, self._fresh_since()))

    @staticmethod
    def _fresh_since() -> float:
        """Return the time (s, of the loop's clock) since which an answer is fresh."""
        return asyncio.get_running_loop().time() - FRESH_S

    def unsupported(self, resource: OfBroker) -> list[str]:
        """Return the fields of a resource that the broker does not have, each with what is valid."""
        return []

    def fitted(self, resource: OfBroker) -> OfBroker:
        """Return a resource without the fields that the broker does not tell from fields that are left out."""
        return resource

    async def apply(self, manifest: Manifest) -> None:
        """Apply one manifest, in a batch with others of its kind that are submitted at about the same time."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kind = manifest["kind"]
        batch = self._batches.setdefault(kind, [])
        batch.append(_Submitted(manifest, done))
        if len(batch) == 1:
            self._start(self._send_soon(kind))
        await done

    async def delete(self, kind: str, name: str, *, force: bool) -> None:
        """Delete an object with its data; a missing one counts as deleted. :meth:`check_store` comes before."""
        client = self._client
        if self._store_id and self._listing is None:
            raise AdminUnreachable(f"store {self._store_id} did not answer at {self.http_url}")

        async def call() -> None:
            if kind == "Subscription":
                await client.delete_subscription(SubscriptionName.parse(name), force=force)
            elif kind == "Topic":
                await client.delete_topic(TopicName.parse(name), force=force)
            elif kind == "Namespace":
                await client.delete_namespace(NamespaceName.parse(name), force=force)
            else:
                await client.delete_tenant(name, force=force)

        try:
            await self._call("delete", call)
            self._changed_at = asyncio.get_running_loop().time()
        except AdminRefused as error:
            if not is_missing(error):
                raise

    async def grant(self, role: str, wanted: Sequence[Change]) -> None:
        """Change the grants of a role, one after the other; those before one that is refused are changed by then."""
        client = self._client

        async def call() -> None:
            for each in wanted:
                if isinstance(each, NamespaceGrant):
                    await client.grant_namespace(each.namespace, role, each.actions)
                elif isinstance(each, TopicGrant):
                    await client.grant_topic(TopicName.parse(each.topic), role, each.actions)
                elif each.roles:
                    # Another User may have added itself since the listing.
                    have = (await client.subscription_roles(each.namespace)).get(each.subscription, [])
                    if role not in have:
                        await client.set_subscription_roles(each.namespace, each.subscription, [*have, role])
                else:
                    await client.remove_subscription_role(each.namespace, each.subscription, role)

        # The roles of a subscription are one list, which is read and written.
        shares = any(isinstance(each, SubscriptionRoles) for each in wanted)
        try:
            async with self._subscriptions_lock if shares else nullcontext():
                await self._call("grant", call)
        finally:
            self._role_changes.add(role, asyncio.get_running_loop().time())

    async def set_role(self, role: str, settings: RoleSettings | None) -> None:
        """Set everything of a role but its grants; None: nothing is set for it any more."""
        client = self._client

        async def call() -> None:
            if settings is None:
                await client.delete_role(role)
            else:
                await client.put_role(role, settings)

        try:
            await self._call("role", call)
        finally:
            self._role_changes.add(role, asyncio.get_running_loop().time())

    async def check_store(self) -> None:
        """List the broker if the last listing is old; changes do not make it old, as they do not change the store.

        Nothing is listed of brokers whose store is not known. Raises :class:`AdminUnreachable` for another store.
        """
        if not self._store_id:
            return
        oldest = self._fresh_since()
        if self._listing is None or self._listing.at < oldest or not self.reachable:
            await self.listing(oldest)

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_soon(self, kind: str) -> None:
        await asyncio.sleep(self._batch_s)
        batch = self._batches.pop(kind)
        try:
            for at in range(0, len(batch), MAX_BATCH):
                await self._send(batch[at : at + MAX_BATCH])
        except BaseException as error:
            # The caller that waits for a change is not cancelled with the session.
            _settle(batch, self._closed() if isinstance(error, asyncio.CancelledError) else error)
            raise

    async def _send(self, batch: Sequence[_Submitted]) -> None:
        """Send manifests; split a refused batch in halves until only the refused ones fail."""
        text = "\n---\n".join(json.dumps(wanted.manifest) for wanted in batch)
        try:
            await self.check_store()
            await self._call("apply", lambda: self._client.apply(text))
            self._changed_at = asyncio.get_running_loop().time()
        except AdminRefused as error:
            if len(batch) > 1:
                await self._send(batch[: len(batch) // 2])
                await self._send(batch[len(batch) // 2 :])
                return
            _settle(batch, error)
        except AdminUnreachable as error:
            _settle(batch, error)
        else:
            _settle(batch, None)

    def _closed(self) -> AdminUnreachable:
        return AdminUnreachable(f"the session with {self.http_url} was closed")

    async def _call(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        if operation != "state" and self._deposed():
            raise AdminUnreachable("this operator does not lead any more")
        if self._ended:
            raise self._closed()
        if loop.time() < self._paused_until:
            raise AdminUnreachable(self._error)
        if not self._opened:
            await self._client.__aenter__()
            self._opened = True
        try:
            answer = await self._answered(call)
        except AdminUnreachable as error:
            if self.reachable:
                self._unreachable_since = loop.time()
            self._failures += 1
            pause = UNREACHABLE.delay(self._failures)
            self._paused_until, self._error = loop.time() + pause, str(error)
            operator_metrics.BROKER_ATTEMPTS.labels(operation, "unreachable").inc()
            log.warning("broker unreachable", url=self.http_url, error=str(error), again_s=pause)
            raise
        except AdminRefused:
            self._failures = 0
            operator_metrics.BROKER_ATTEMPTS.labels(operation, "refused").inc()
            raise
        self._failures = 0
        operator_metrics.BROKER_ATTEMPTS.labels(operation, "ok").inc()
        return answer

    async def _answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call with a time limit: a connection to a pod that is gone may stay silent."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await call()
        except TimeoutError as error:
            raise AdminUnreachable(f"the broker at {self.http_url} does not answer within {ANSWER_S:g} s") from error


async def heliograph_state(asked: Awaitable[BrokerState]) -> BrokerState | None:
    """Return all that brokers have, by their answer; None if they are another product, which does not know the path."""
    try:
        return await asked
    except AdminRefused as error:
        if error.status != 404:
            raise
        return None


def is_missing(error: AdminRefused) -> bool:
    """Whether a broker says that it does not have an object; the 404 of a proxy says nothing of that."""
    return error.status == 404 and error.by_broker


def _settle(batch: Sequence[_Submitted], error: BaseException | None) -> None:
    for wanted in batch:
        # The caller may have been cancelled since.
        if not wanted.done.done():
            if error is None:
                wanted.done.set_result(None)
            else:
                wanted.done.set_exception(error)


class BrokerSessions:
    """One :class:`BrokerSession` for each address: the URL of a BrokerCluster, or the address of a BrokerConnection."""

    def __init__(
        self,
        batch_s: float,
        deposed: Callable[[], bool] = lambda: False,
        token: Callable[[str], str] = lambda url: "",
        trusted: Callable[[str], str] = lambda url: "",
    ) -> None:
        """Use ``token`` for the operator's token at the URL of a BrokerCluster's brokers.

        ``trusted`` is for the authorities, in PEM, that it trusts there.
        """
        self.batch_s = batch_s
        self.deposed = deposed
        self._token = token
        self._trusted = trusted
        self._brokers: dict[str, BrokerSession] = {}
        #: When (s, of the loop's clock) connections that have no session were first found to be without, by addresses.
        self._unconnected: dict[str, float] = {}

    def has(self, address: str) -> bool:
        """Whether there is a session at an address; one for a URL is made when it is asked for."""
        return bool(address) and (not address.startswith(CONNECTION) or address in self._brokers)

    def unconnected_s(self, address: str) -> float:
        """Return the seconds since a connection was found to be without a session, 0 if it was not tried yet."""
        since = self._unconnected.get(address)
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    async def connect(self, address: str, session: BrokerSession) -> None:
        """Use a session for a BrokerConnection, in place of the one before."""
        self._unconnected.pop(address, None)
        before, self._brokers[address] = self._brokers.get(address), session
        if before is not None:
            await before.close()

    async def disconnect(self, address: str) -> None:
        """End the session of a BrokerConnection: there are no credentials for it, or no broker."""
        self._unconnected.setdefault(address, asyncio.get_running_loop().time())
        if (session := self._brokers.pop(address, None)) is not None:
            await session.close()

    def at(self, http_url: str) -> BrokerSession:
        """Return the broker at an address that :meth:`has` a session. Raises AdminUnreachable at any other."""
        if not self.has(http_url):
            raise AdminUnreachable(f"there is no session with {http_url}")
        if http_url not in self._brokers:
            client = AdminClient(
                http_url,
                token=partial(self._token, http_url),
                trusted=partial(self._trusted, http_url),
                deposed=self.deposed,
            )
            self._brokers[http_url] = BrokerSession(http_url, self.batch_s, self.deposed, client)
        return self._brokers[http_url]

    async def keep_only(self, http_urls: set[str]) -> None:
        """Close the sessions with all other brokers."""
        for url in self._brokers.keys() - http_urls:
            # Another task may have ended it meanwhile.
            if (session := self._brokers.pop(url, None)) is not None:
                await session.close()

    async def close(self) -> None:
        """End all sessions."""
        await self.keep_only(set())
