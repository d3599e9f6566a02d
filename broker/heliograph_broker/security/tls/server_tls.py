"""The TLS context in effect, and its replacement when the files change.

The contents of the files are compared, not their times: Kubernetes mounts a Secret by symbolic links, and swaps one of
them. A context is never changed: a new one takes effect for new connections, with certificate, key and authorities that
belong together.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Final

import structlog

from heliograph_broker.clock import Clock
from heliograph_broker.messaging.base.tls_metrics import TlsMetrics

from .contexts import Loaded, ServerContext, TlsError, TlsFiles, load

log = structlog.get_logger(__name__)

#: Time (s) between two checks of the files.
CHECK_S: Final = 5.0


class ServerTls:
    """The context for new connections, in :attr:`context`. Begin with :meth:`start`."""

    context: ServerContext

    def __init__(self, files: TlsFiles, clock: Clock, loop: asyncio.AbstractEventLoop, metrics: TlsMetrics) -> None:
        self._files = files
        self._clock = clock
        self._loop = loop
        self._metrics = metrics
        #: The contents in effect, and those that were refused last.
        self._contents: tuple[bytes, ...] = ()
        self._refused: tuple[bytes, ...] | str = ()
        #: Those in effect, and all contexts with them or with more, which open connections have.
        self._authorities: frozenset[tuple[bytes, bytes]] = frozenset()
        self._contexts: weakref.WeakSet[ServerContext] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self._check: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the files and check them from now on. Raises :class:`TlsError` if they cannot be used.

        Certificates that have expired are used all the same: clients that do not verify them, and the ports without
        TLS, are served.
        """
        loaded = await self._loop.run_in_executor(None, load, self._files, self._clock.now_ms())
        if loaded.invalid:
            log.error("TLS starts with a certificate that is not valid", error=loaded.invalid)
        self._take(loaded)
        self._watch()

    def stop(self) -> None:
        """End the checks."""
        if self._timer is not None:
            self._timer.cancel()
        if self._check is not None:
            self._check.cancel()

    def _watch(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._begin_check)

    def _begin_check(self) -> None:
        self._check = self._loop.create_task(self._check_and_watch())

    async def _check_and_watch(self) -> None:
        try:
            await self.check()
        except Exception:
            # Without checks, the certificate in effect would expire.
            log.exception("check of the TLS files failed")
        self._watch()

    async def check(self) -> None:
        """Take the files' contents into effect if they have changed and can be used."""
        try:
            contents = await self._loop.run_in_executor(None, self._files.read)
        except TlsError as error:
            self._refuse(str(error), str(error))
            return
        if contents == self._contents:
            self._refused, self._metrics.refused = (), False
            return
        try:
            loaded = await self._loop.run_in_executor(None, load, self._files, self._clock.now_ms())
        except TlsError as error:
            self._refuse(contents, str(error))
            return
        if loaded.invalid:
            self._refuse(loaded.contents, loaded.invalid)
            return
        self._take(loaded)
        self._metrics.reloads += 1
        log.info("reloaded the TLS certificate", expires=int(min(loaded.expiry.values())))

    def _take(self, loaded: Loaded) -> None:
        if self._authorities - loaded.authorities:
            log.info("an authority of clients' certificates was removed: its clients are disconnected")
            for each in self._contexts:
                each.withdrawn = True
            self._contexts.clear()
        self._authorities = loaded.authorities
        self._contexts.add(loaded.context)
        self.context, self._contents, self._refused = loaded.context, loaded.contents, ()
        self._metrics.expiry = dict(loaded.expiry)
        self._metrics.refused = False

    def _refuse(self, what: tuple[bytes, ...] | str, reason: str) -> None:
        """Keep the context in effect; log and count ``reason`` once for each new content."""
        self._metrics.refused = True
        if what == self._refused:
            return
        self._refused = what
        self._metrics.failures += 1
        log.error("could not reload the TLS files; those read before stay in effect", error=reason)
