"""Checks what answers at the address of a BrokerConnection, and gives its resources a session with it.

Nothing is created for a connection, and nothing in its brokers is changed or deleted because of it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Final

from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.resources.model import BrokerConnection

from heliograph_operator.act.broker_sessions import (
    BrokerSession,
    BrokerSessions,
    Listing,
    StoreChanged,
    heliograph_state,
)
from heliograph_operator.act.controller import Context, Outcome
from heliograph_operator.act.finalizers import hold, release
from heliograph_operator.act.pulsar_session import PulsarSession
from heliograph_operator.act.resource import NOT_RECONCILED, Resource
from heliograph_operator.act.status_report import named, report
from heliograph_operator.decide.broker_differences import exists, observed
from heliograph_operator.decide.established_brokers import SAME_BROKERS, Brokers, other_brokers, recorded_brokers
from heliograph_operator.objects.backoff import UNREACHABLE
from heliograph_operator.objects.conditions import Reason, ready
from heliograph_operator.objects.kinds import Key, annotation, is_held, key_of, shown
from heliograph_operator.objects.targets import broker_address

from .connection_access import Access, AccessMissing, access_of

HELIOGRAPH: Final = "Heliograph"
PULSAR: Final = "Apache Pulsar"
#: Time (s) between two reads of the credentials: Secrets are not watched.
CHECK_S: Final = 60.0
_RECHECK_S: Final = 1.0
_MAX_NAMED: Final = 5
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]")
_REFUSED_AS_UNKNOWN: Final = (401, 403)


class BrokersChanged(Exception):
    """Other brokers answer than those that the connection was established with; the text says what is valid."""


class ConnectionReconciler:
    """The reconciler of BrokerConnections."""

    def __init__(self, brokers: BrokerSessions) -> None:
        self._brokers = brokers
        #: With what the session at each address was opened, and what the brokers there are.
        self._opened: dict[str, tuple[Access, Brokers]] = {}
        #: The version in the first listing of each session.
        self._versions: dict[str, str] = {}
        #: When (s, of the loop's clock) the access of connections that are being deleted was last read.
        self._kept_at: dict[str, float] = {}

    async def reconcile(self, context: Context, resource: Resource) -> Outcome:
        """See :data:`.controller.Reconciler`."""
        memory = resource.memory
        memory.observed, memory.unreachable = None, False
        if resource.deleted:
            return await self._delete(context, resource)
        if not resource.managed:
            await self._disconnect(resource)
            await release(context, resource)
            await report(context, resource, [ready(Reason.UNMANAGED, NOT_RECONCILED, "Unknown")])
            return Outcome("unmanaged")
        model = resource.model
        if not isinstance(model, BrokerConnection):
            await self._disconnect(resource)
            return await self._not_ready(context, resource, Reason.INVALID, memory.problem)
        if not is_held(resource.body):
            return await self.reconcile(context, resource) if await hold(context, resource) else Outcome("gone")
        try:
            access = await access_of(context.kube, resource.key.namespace, model.spec)
            brokers, listing = await self._listing(context, resource, access)
        except AccessMissing as error:
            await self._disconnect(resource)
            return await self._not_ready(context, resource, Reason.CREDENTIALS_MISSING, str(error))
        except UnicodeError as error:
            await self._disconnect(resource)
            message = f"spec.adminUrl: {access.http_url} names no host: {error}; valid: the URL of the admin API"
            return await self._not_ready(context, resource, Reason.BROKER_UNREACHABLE, message)
        except ValueError as error:
            await self._disconnect(resource)
            message = f"spec.tls: {error}; valid: certificates in PEM (-----BEGIN CERTIFICATE-----)"
            return await self._not_ready(context, resource, Reason.CREDENTIALS_MISSING, message)
        except BrokersChanged as error:
            return await self._not_ready(context, resource, Reason.BROKERS_CHANGED, str(error))
        except StoreChanged:
            # The session has ended, so nothing is done until the next check has asked what answers now.
            return Outcome("waiting", _RECHECK_S)
        except AdminUnreachable as error:
            self._note_unreachable(resource)
            await self._not_ready(context, resource, Reason.BROKER_UNREACHABLE, str(error))
            return Outcome("waiting", UNREACHABLE.cap_s)
        except AdminRefused as error:
            self._note_unreachable(resource)
            unknown = error.status in _REFUSED_AS_UNKNOWN
            reason = Reason.UNAUTHORIZED if unknown else Reason.REFUSED
            return await self._not_ready(context, resource, reason, f"{access.http_url}: {error.reason}")
        fields = {**brokers.status(), "version": listing.state.version}
        if model.spec.service_url:
            fields["endpoints"]["broker"] = model.spec.service_url
        await report(context, resource, [ready(Reason.RECONCILED, f"{brokers.product} answers", "True")], fields)
        # A later listing that differs, as after an upgrade, requeues the connection.
        memory.observed = observed(resource.key.kind, "", listing.state)
        return Outcome("ready", CHECK_S)

    async def _listing(self, context: Context, resource: Resource, access: Access) -> tuple[Brokers, Listing]:
        """Return what the brokers are, and their listing; end the session if something else answers by now."""
        address = broker_address(resource.body)
        session, brokers = await self._session(context, resource, access)
        try:
            listing = await session.recent_listing()
        except StoreChanged:
            await self._disconnect(resource)
            raise
        except AdminRefused as error:
            if error.status == 404:
                await self._disconnect(resource)
            raise
        if self._versions.setdefault(address, listing.state.version) != listing.state.version:
            await self._disconnect(resource)
            return await self._listing(context, resource, access)
        return brokers, listing

    async def _session(self, context: Context, resource: Resource, access: Access) -> tuple[BrokerSession, Brokers]:
        """Return the session of a connection, and what the brokers are; open one if there is none with this access.

        Raises :class:`BrokersChanged` rather than open one with other brokers.
        """
        address = broker_address(resource.body)
        opened = self._opened.get(address)
        if opened is not None and opened[0] == access and self._brokers.has(address):
            resource.memory.http_url = address
            return self._brokers.at(address), opened[1]
        # A session with other credentials is not used any more, whatever comes of this.
        await self._disconnect(resource)
        brokers, state = await _answering(access)
        brokers = await _establish(context, resource, brokers, state)
        batch_s, deposed = self._brokers.batch_s, self._brokers.deposed
        client = client_of(access, deposed)
        session: BrokerSession
        if brokers.product == PULSAR:
            session = PulsarSession(access.http_url, batch_s, deposed, client)
        else:
            session = BrokerSession(access.http_url, batch_s, deposed, client, brokers.store_id)
        self._opened[address] = (access, brokers)
        # Before the session is there: sessions that no resource names are closed.
        resource.memory.http_url = address
        await self._brokers.connect(address, session)
        # Their status does not show that this operator has a session again.
        for key in context.cache.named_by(resource.key):
            context.queue.add(key)
        return session, brokers

    async def _disconnect(self, resource: Resource) -> None:
        address = broker_address(resource.body)
        resource.memory.http_url = ""
        self._opened.pop(address, None)
        self._versions.pop(address, None)
        await self._brokers.disconnect(address)

    def _note_unreachable(self, resource: Resource) -> None:
        """Let the next answer requeue a connection whose session stays."""
        resource.memory.unreachable = bool(resource.memory.http_url)

    async def _not_ready(self, context: Context, resource: Resource, reason: Reason, message: str) -> Outcome:
        await report(context, resource, [ready(reason, message)])
        return Outcome("waiting", CHECK_S)

    async def _delete(self, context: Context, resource: Resource) -> Outcome:
        """Wait for the resources on it: their deletion needs the session, and theirs alone deletes anything."""
        if is_held(resource.body):
            found = (context.cache.get(key) for key in context.cache.ownership.on_cluster(resource.key))
            held = [body for body in found if body is not None and is_held(body)]
            if held:
                changed = await self._keep(context, resource)
                names = [shown(key_of(body), resource.key.namespace) for body in held]
                message = (
                    f"resources are on it: {named(names, _MAX_NAMED, ', ')}; valid: delete these, too, or annotate each"
                    " of these with heliograph.dev/managed=false, which leaves its data in the brokers"
                )
                verdict = ready(Reason.CHILDREN_EXIST, message)
                if changed:
                    verdict = ready(Reason.BROKERS_CHANGED, f"{message}. Their deletion waits: {changed}")
                await report(context, resource, [verdict])
                return Outcome("waiting", _RECHECK_S if resource.memory.http_url else UNREACHABLE.first_s)
        await self._disconnect(resource)
        self._kept_at.pop(broker_address(resource.body), None)
        await release(context, resource)
        return Outcome("gone")

    async def _keep(self, context: Context, resource: Resource) -> str:
        """Open the session for the deletion of its resources, if this operator has none with its credentials of now.

        Return why it must not, as other brokers answer; empty otherwise.
        """
        model, address = resource.model, broker_address(resource.body)
        now = asyncio.get_running_loop().time()
        if not isinstance(model, BrokerConnection):
            return ""
        if resource.memory.http_url and now < self._kept_at.get(address, -CHECK_S) + CHECK_S:
            return ""
        self._kept_at[address] = now
        try:
            access = await access_of(context.kube, resource.key.namespace, model.spec)
            await self._session(context, resource, access)
        except BrokersChanged as error:
            return str(error)
        except (AccessMissing, ValueError, AdminUnreachable, AdminRefused):
            await self._disconnect(resource)
        return ""


def client_of(access: Access, deposed: Callable[[], bool] = lambda: False) -> AdminClient:
    """Return a client with the credentials of a connection. Raises ValueError for unreadable certificates."""
    return AdminClient(access.http_url, token=access.token, trusted=access.trusted, deposed=deposed)


async def _establish(context: Context, resource: Resource, brokers: Brokers, state: BrokerState | None) -> Brokers:
    """Record the brokers of a connection, before anything is done there. Raises :class:`BrokersChanged` for others.

    Returns what is recorded. Where no resource owns an object yet, each adopts what it finds, in whatever brokers.
    ``state`` is all that a Heliograph has; a store that was lost has none of the objects.
    """
    body = context.cache.get(resource.key) or resource.body
    recorded = recorded_brokers(body.get("status") or {})
    established = context.cache.ownership.established_on(resource.key)
    if established and recorded is not None and not brokers.store_id and recorded[:2] == brokers[:2]:
        # An earlier version does not tell its store. When a later one does again, it has to be the same.
        brokers = recorded
    if established and (why := other_brokers(recorded, brokers, annotation(body, SAME_BROKERS))):
        at_the_same = recorded is not None and recorded[:2] == (brokers.admin_url, HELIOGRAPH)
        lost = at_the_same and state is not None and not _have_any(context, established, state)
        if not lost:
            raise BrokersChanged(why)
        message = f"{recorded} has become {brokers}, without any object of the resources: they are created again"
        await context.events.emit(body, "StoreReplaced", message, "Warning")
    if recorded != brokers:
        await report(context, resource, [], brokers.status())
    return brokers


def _have_any(context: Context, keys: list[Key], state: BrokerState) -> bool:
    """Whether a Heliograph has an object that one of the resources stands for."""
    stakes = (context.cache.ownership.stake(key) for key in keys)
    return any(exists(stake.claim.kind, stake.claim.name, state) for stake in stakes if stake is not None)


async def _answering(access: Access) -> tuple[Brokers, BrokerState | None]:
    """Return what answers, and all that it has if it is a Heliograph.

    Raises :class:`.admin_client.AdminError`, or ValueError for unreadable certificates.
    """
    async with client_of(access) as client:
        version = await client.broker_version()
        if not _VERSION.match(version):
            raise AdminRefused(200, "the answer to /admin/v2/brokers/version is no version")
        state = await heliograph_state(client.state())
        if state is None:
            return Brokers(access.http_url, PULSAR), None
        return Brokers(access.http_url, HELIOGRAPH, state.store_id), state
