"""Lists every broker every few seconds and enqueues only the resources whose broker state changed."""

from __future__ import annotations

import asyncio

import structlog
from heliograph_api.admin.admin_client import AdminError

from heliograph_operator.act.broker_sessions import BrokerSessions
from heliograph_operator.act.controller import Context
from heliograph_operator.archive.archive_refresh import enqueue_changed
from heliograph_operator.decide.broker_differences import observed
from heliograph_operator.decide.resource_stats import worth_writing

log = structlog.get_logger(__name__)


class Refresh:
    """Finds drift, statistics that moved, brokers that answer again, and archive runs that ended."""

    def __init__(self, context: Context, brokers: BrokerSessions) -> None:
        self._context = context
        self._brokers = brokers

    async def run(self) -> None:
        """Refresh every ``refresh_s`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.refresh_s)
            await self.once()

    async def once(self) -> None:
        """List each broker, and the archives' jobs, once."""
        urls = {memory.http_url for _, memory in self._context.memories.all() if memory.http_url}
        await self._brokers.keep_only(urls)
        await asyncio.gather(*(self._list(url) for url in urls), enqueue_changed(self._context))

    async def _list(self, url: str) -> None:
        broker = self._brokers.at(url)
        loop = asyncio.get_running_loop()
        try:
            listing = await broker.listing(loop.time())
        except AdminError as error:
            log.debug("broker unreachable", url=url, error=str(error))
            self._enqueue(url, unreachable=False)
            return
        self._enqueue(url, unreachable=True)
        for key, memory in self._context.memories.all():
            # A resource that is being reconciled, or waits for something else, is requeued by that.
            if memory.http_url != url or memory.observed is None:
                continue
            if observed(key.kind, memory.name, listing.state) != memory.observed:
                self._context.queue.add(key)
                continue
            stats = listing.stats(key.kind, memory.name)
            if stats is not None and worth_writing(memory.written, stats, loop.time() - memory.written_at):
                self._context.queue.add(key)

    def _enqueue(self, url: str, *, unreachable: bool) -> None:
        """Enqueue the resources of a broker that report it as unreachable, or that do not yet."""
        for key, memory in self._context.memories.all():
            if memory.http_url == url and memory.unreachable is unreachable:
                self._context.queue.add(key)
