"""A whole broker in one process: store, core, binary port and HTTP port on one event loop."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
from aiohttp import web
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.http.base.connection import HttpConnection, refusal
from heliograph_broker.http.base.request_errors import RequestErrors
from heliograph_broker.messaging.broker.broker import Broker
from heliograph_broker.security.security import Security
from heliograph_broker.security.tls.contexts import TlsFiles
from heliograph_broker.security.tls.server_tls import ServerTls
from heliograph_broker.storage.base.completion import completed
from heliograph_broker.storage.base.failure import StorageFull
from heliograph_broker.storage.base.scheduler import LoopScheduler, Scheduler
from heliograph_broker.storage.disk.disk import Disk
from heliograph_broker.usecases.topics import advertised_urls

from .clock import Clock, SystemClock
from .http.app import Endpoints, create_app, create_metrics_app
from .server.acceptor import Acceptor, Encryption, host_in_url
from .server.connection_limits import limits_of
from .server.handshake_turns import HandshakeTurns
from .server.listener import Listener
from .storage.ledgers.ledger_ids import MAX_EPOCH
from .storage.store import LedgerStore

log = structlog.get_logger(__name__)

_TICK_S = 0.05
#: Time (s) for which an HTTP connection may wait for its next request; aiohttp's own is an hour.
_HTTP_IDLE_S = 75.0
#: Pause between slices of work that is due at once, so that traffic and small commits are not delayed.
_SLICE_PAUSE_S = 0.002


class Standalone:
    """Start with :meth:`start`, end with :meth:`stop`. Manifests are applied before the broker is ready."""

    def __init__(
        self,
        config: BrokerConfig,
        manifests: list[Path],
        clock: Clock | None = None,
        *,
        disk: Disk | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``clock``, ``disk`` and ``rng`` default to those of the machine."""
        self.config = config
        self._manifests = manifests
        self._clock = clock or SystemClock()
        self._disk = disk
        self._rng = rng or random.Random(random.SystemRandom().getrandbits(64))
        self._tick: asyncio.TimerHandle | None = None
        self._runners: list[web.AppRunner] = []
        self._failed = asyncio.Event()
        self._http: list[Acceptor] = []
        self._security: Security | None = None
        self._tls: ServerTls | None = None
        self._encryption: Encryption | None = None
        #: Empty for a port that is not open.
        self.broker_url = ""
        self.http_url = ""
        self.broker_tls_url = ""
        self.https_url = ""

    async def start(self, recovered: Callable[[], None] | None = None) -> None:
        """Open the data directory and the ports; it is ready on return.

        Raises ``DataDirError``, ``ManifestError``, ``BrokerError``, ``StoreFailed``, ``KeyUnusable``,
        ``ProviderUnusable``, ``TlsError``, or :class:`OSError` (a port). ``recovered`` is called when the data
        directory has been read, before the HTTP port is opened. On a full disk it starts and is not ready: what is
        stored can be consumed, which makes room.
        """
        if self._manifests:
            # The models of resources take long to import.
            from heliograph_api.manifests.manifest_reader import load

            from heliograph_broker.usecases.apply import apply_resources

            resources = load(self._manifests)
        self._loop = asyncio.get_running_loop()
        self._store = LedgerStore.open(
            Path(self.config.data_dir),
            self._clock,
            scheduler=self._make_scheduler(),
            segment_bytes=self.config.segment_bytes,
            disk_reserve_bytes=self.config.disk_reserve_bytes,
            disk=self._disk,
            new_epoch=self._rng.randrange(1, MAX_EPOCH),
            new_store_id=f"{self._rng.getrandbits(128):032x}",
            scrub_bytes_per_s=self.config.scrub_bytes_per_s,
            scrub_interval_s=self.config.scrub_interval_s,
        )
        try:
            self.broker = Broker(self._store, self._clock, self.config, self._rng)
            self.broker.load()
            if self._manifests:
                for applied in apply_resources(self.broker, resources):
                    if applied.note:
                        log.warning("left to others", kind=applied.kind, name=applied.name, what=applied.note)
            self._store.writer.on_failure(lambda reason: self._failed.set())
            try:
                await self._committed()
            except StorageFull as error:
                log.error(
                    "the disk is full: changes made by the start are written when there is room", error=str(error)
                )
            if self.config.tls_cert:
                await self._start_tls()
            self._security = Security.from_config(self.config, self.broker.directory, self.broker.roles, self._clock)
            if self._security is not None:
                self.broker.metrics.authentications = self._security.authenticator.attempts
                self.broker.metrics.key_fetches = self._security.authenticator.key_fetches
                self._security.authenticator.start()
            self._listener = Listener(self.broker, self._loop, self._security, self._encryption)
            await self._listener.start()
            if recovered is not None:
                recovered()
            await self._start_http()
        except BaseException:
            if self._security is not None:
                await self._security.authenticator.close()
            if self._tls is not None:
                self._tls.stop()
            self._store.close()
            raise
        self._on_tick()
        self._settle_memory()
        encrypted = {"broker_tls": self.broker_tls_url, "https": self.https_url} if self._encryption is not None else {}
        log.info(
            "ready",
            broker=self.broker_url,
            http=self.http_url,
            **encrypted,
            topics=len(self.broker.directory.topics),
        )

    @property
    def urls(self) -> list[str]:
        """The addresses for clients and of HTTP, then those of both with TLS; only of ports that are open."""
        return list(filter(None, (self.broker_url, self.http_url, self.broker_tls_url, self.https_url)))

    async def _start_tls(self) -> None:
        """Load the certificate and watch its files. Raises ``TlsError``."""
        self._tls = tls = ServerTls(TlsFiles.of(self.config), self._clock, self._loop, self.broker.metrics.tls)
        await tls.start()
        turns = HandshakeTurns(self._loop, self.broker.metrics.tls, self._clock.monotonic)
        config = self.config
        self._encryption = Encryption(lambda: tls.context, turns, config.handshake_timeout_s, config.close_timeout_s)

    def _make_scheduler(self) -> Scheduler:
        """Return where the store's work runs. A simulation puts its own in this place."""
        return LoopScheduler(self._loop)

    def _settle_memory(self) -> None:
        """Tell the garbage collector that the process has reached its size."""
        # Loaded objects stay: the collector need not examine them again. Entries and receipts die by reference count;
        # cycles are few (a connection that ended), and looking for them more often cost a tenth of the time a message.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)

    async def _start_http(self) -> None:
        config = self.config
        host = host_in_url(config.advertised_host or config.bind)
        own = self._listener.urls_at(config.advertised_host or config.bind)
        self.broker_url, self.broker_tls_url = advertised_urls(config, "") or own
        endpoints = Endpoints(self.broker_url, "", self.broker_tls_url)
        app = create_app(self.broker, config, endpoints, self._security)
        runner = await self._run(app)
        if not config.tls_only:
            self.http_url = endpoints.http_url = f"http://{host}:{await self._serve(runner, config.http_port)}"
        if self._encryption is not None:
            port = await self._serve(runner, config.https_port, self._encryption)
            self.https_url = endpoints.https_url = f"https://{host}:{port}"
        if config.metrics_port:
            metrics = await self._run(create_metrics_app(app, self._security))
            await self._serve(metrics, config.metrics_port, self._encryption if config.tls_only else None)

    async def _run(self, app: web.Application) -> web.AppRunner:
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=RequestErrors(self._clock.monotonic),
            keepalive_timeout=_HTTP_IDLE_S,
            # Else the library would decompress a body while it arrives, before anybody has asked whose it is.
            auto_decompress=False,
        )
        self._runners.append(runner)
        await runner.setup()
        return runner

    async def _serve(self, runner: web.AppRunner, port: int, encryption: Encryption | None = None) -> int:
        """Serve an application at a port; return it. Raises :class:`OSError` if it is taken."""
        server = runner.server
        assert server is not None
        metrics = self.broker.metrics.http_connections
        within_s = self.config.handshake_timeout_s
        # As long as on the binary port.
        unread_s = 2 * self.config.keep_alive_interval_s
        # Administrators can connect even if clients have used up their descriptors.
        acceptor = Acceptor(
            self._loop,
            limits_of(self.config, metrics, of_reserve=0.75),
            lambda ended, below: HttpConnection(server(), metrics, self._clock, within_s, unread_s, ended, below),
            refusal,
            encryption,
        )
        self._http.append(acceptor)
        await acceptor.listen(self.config.bind, port)
        return acceptor.port

    async def _committed(self) -> None:
        """Wait until everything submitted so far is written. Raises the store's error if it is not."""
        # A record of a topic that cannot be encoded suspends that topic and nothing else.
        await completed(partial(self._store.writer.after_commit, rests_on=(self.broker.records,)))

    def _on_tick(self) -> None:
        more = False
        try:
            more = self.broker.ticks.run()
            self._listener.memory.check()
        except Exception:
            # The core contains what single topics do. Whatever else goes wrong: without ticks nothing would be on time
            # any more, and readiness tells for how long none has ended well.
            log.exception("tick failed")
        finally:
            # Work that is due now continues soon: its records all together would make a commit long for everybody.
            self._tick = self._loop.call_later(_SLICE_PAUSE_S if more else _TICK_S, self._on_tick)

    async def failed(self) -> None:
        """Wait until the store has failed (``broker.store.writer.failure`` says why): then only a restart helps."""
        await self._failed.wait()

    async def stop(self) -> None:
        """Take no more connections, end those there are, make everything durable, close the store.

        Raises the store's error if something is not durable; the store is closed and its threads have ended even so.
        """
        if self._tick is not None:
            self._tick.cancel()
        self.broker.topics.growth.stop()
        if self._tls is not None:
            self._tls.stop()
        try:
            await self._listener.stop()
            for acceptor in self._http:
                acceptor.stop()
            # The application of the HTTP port ends last: it has what the other one shows.
            for runner in reversed(self._runners):
                await runner.cleanup()
            if self._security is not None:
                await self._security.authenticator.close()
            self.broker.record_writer.flush()
            await self._committed()
        finally:
            self._store.close()
        log.info("stopped")
