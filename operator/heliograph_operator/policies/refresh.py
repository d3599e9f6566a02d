"""Lists each broker every few seconds, and enqueues only the resources whose broker state changed.

Each broker has a task of its own: one that does not answer delays nothing of another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog
from heliograph_api.admin.admin_client import AdminError, AdminUnreachable

from heliograph_operator.act.broker_sessions import BrokerSession, BrokerSessions
from heliograph_operator.act.controller import Context
from heliograph_operator.decide.broker_differences import observed
from heliograph_operator.decide.resource_stats import worth_writing
from heliograph_operator.decide.user_activity import Activity
from heliograph_operator.decide.user_activity import worth_writing as tells_more
from heliograph_operator.objects.kinds import CLUSTER_KINDS, USER

log = structlog.get_logger(__name__)


class Refresh:
    """Finds drift, statistics that moved, and brokers that answer again."""

    def __init__(self, context: Context, brokers: BrokerSessions) -> None:
        self._context = context
        self._brokers = brokers

    async def run(self) -> None:
        """List each broker every ``refresh_s`` seconds, until cancelled."""
        followed: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._context.settings.refresh_s)
                addresses = {memory.http_url for _, memory in self._context.memories.all()}
                urls = {url for url in addresses if self._brokers.has(url)}
                for url in sorted(followed.keys() - urls):
                    followed.pop(url).cancel()
                await self._brokers.keep_only(urls)
                # One that found no session has ended, and there is another session by now.
                followed = {url: task for url, task in followed.items() if not task.done()}
                for url in sorted(urls - followed.keys()):
                    followed[url] = group.create_task(self._follow(url), name=f"refresh of {url}")

    async def _follow(self, url: str) -> None:
        # The session of a connection changes with its credentials.
        while self._brokers.has(url):
            broker = self._brokers.at(url)
            await self._list(url, broker)
            # A broker that did not answer is asked again when the pause of its session ends.
            await asyncio.sleep(broker.paused_s or self._context.settings.refresh_s)

    async def _list(self, url: str, broker: BrokerSession) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            whole = await broker.listing(began)
        except AdminUnreachable as error:
            log.debug("broker unreachable", url=url, error=str(error))
            self._enqueue(url, unreachable=False)
            return
        except AdminError as error:
            # Brokers refuse the operator, as with a token that expired: no resource of theirs need ask as well.
            log.debug("broker refuses the listing", url=url, error=str(error))
            self._enqueue(url, unreachable=False, kinds=CLUSTER_KINDS)
            return
        self._enqueue(url, unreachable=True)
        for key, memory in self._context.memories.all():
            # A resource that is being reconciled, or waits for something else, is requeued by that.
            if memory.http_url != url or memory.observed is None:
                continue
            try:
                listing = whole
                if not broker.lists_everything and key.kind not in CLUSTER_KINDS:
                    listing = await broker.listing_of(key.kind, memory.name, began)
            except AdminError as error:
                # Its reconcile reports it.
                self._context.queue.add(key)
                if isinstance(error, AdminUnreachable):
                    return
                continue
            if key.kind == USER.name:
                activity = Activity.of(memory.name, listing.state)
                age_s = loop.time() - memory.activity_at
                is_same = listing.role(memory.name) == memory.observed
                if is_same:
                    memory.sent = None
                if not is_same or tells_more(memory.activity, activity, age_s):
                    self._context.queue.add(key)
                continue
            if observed(key.kind, memory.name, listing.state) != memory.observed:
                self._context.queue.add(key)
                continue
            stats = listing.stats(key.kind, memory.name)
            if stats is not None and worth_writing(memory.written, stats, loop.time() - memory.written_at):
                self._context.queue.add(key)

    def _enqueue(self, url: str, *, unreachable: bool, kinds: Collection[str] = ()) -> None:
        """Enqueue the resources of a broker (those of ``kinds``) that report it as unreachable, or do not yet."""
        for key, memory in self._context.memories.all():
            if kinds and key.kind not in kinds:
                continue
            if memory.http_url == url and memory.unreachable is unreachable:
                self._context.queue.add(key)
