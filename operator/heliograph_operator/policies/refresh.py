"""One listing of each broker every few seconds: who is not as it was is looked at, the others cost nothing."""

from __future__ import annotations

import asyncio

import structlog
from heliograph_api.admin.admin_client import AdminError

from heliograph_operator.act.broker_sessions import Brokers
from heliograph_operator.act.controller import Context
from heliograph_operator.act.resource_memory import Memories
from heliograph_operator.archive import archive_reconciler
from heliograph_operator.decide.resource_stats import worth_writing

from .policy_reconciler import settled

log = structlog.get_logger(__name__)


class Refresh:
    """Finds drift and moved figures, brokers that answer again, and runs of archives that ended."""

    def __init__(self, context: Context, brokers: Brokers, memories: Memories) -> None:
        self._context = context
        self._brokers = brokers
        self._memories = memories

    async def run(self) -> None:
        """Look at all brokers every ``refresh_s`` seconds, until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.refresh_s)
            await self.once()

    async def once(self) -> None:
        """Look at each broker once."""
        urls = {memory.http_url for _, memory in self._memories.all() if memory.http_url}
        await self._brokers.keep_only(urls)
        await asyncio.gather(*(self._look(url) for url in urls), archive_reconciler.look(self._context, self._memories))

    async def _look(self, url: str) -> None:
        broker = self._brokers.at(url)
        loop = asyncio.get_running_loop()
        try:
            listing = await broker.listing(loop.time())
        except AdminError as error:
            log.debug("a broker is waited for", url=url, error=str(error))
            self._wake(url, unreachable=False)
            return
        self._wake(url, unreachable=True)
        for key, memory in self._memories.all():
            # What is being looked at, or waits for something else, comes by itself.
            if memory.http_url != url or memory.settled is None:
                continue
            if settled(key.kind, memory.name, listing.state) != memory.settled:
                self._context.queue.add(key)
                continue
            figures = listing.figures(key.kind, memory.name)
            if figures is not None and worth_writing(memory.written, figures, loop.time() - memory.written_at):
                self._context.queue.add(key)

    def _wake(self, url: str, *, unreachable: bool) -> None:
        """Have those looked at that know, or do not know yet, that their broker does not answer."""
        for key, memory in self._memories.all():
            if memory.http_url == url and memory.unreachable is unreachable:
                self._context.queue.add(key)
