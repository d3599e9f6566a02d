"""The brokers behind the resources: one session each, one listing for all that ask, changes sent together.

A broker that does not answer is asked again after a pause that grows, once for everybody: meanwhile all are told why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeVar

import structlog
from heliograph_api.admin.admin_client import AdminClient, AdminRefused, AdminUnreachable
from heliograph_api.resources.broker_state import BrokerState
from heliograph_api.values.names import NamespaceName, TopicName

from heliograph_operator import operator_metrics
from heliograph_operator.decide.resource_stats import Figures, figures_of, totals_of
from heliograph_operator.objects.backoff import UNREACHABLE

log = structlog.get_logger(__name__)

T = TypeVar("T")
Manifest = Mapping[str, Any]

#: Time (s) a broker has for an answer; the longest ones take a second or two.
ANSWER_S: Final = 20.0
#: Manifests in one request: the broker reads one in half a millisecond, and serves nobody else meanwhile.
MOST_AT_ONCE: Final = 32


class Listing:
    """What a broker said, and when (of the loop's clock) it was asked."""

    def __init__(self, state: BrokerState, at: float) -> None:
        self.state = state
        self.at = at

    @cached_property
    def totals(self) -> dict[str, Figures]:
        """The figures of namespaces and tenants, added up once."""
        return totals_of(self.state)

    def figures(self, kind: str, name: str) -> Figures | None:
        """Return the figures of one object, None if the broker does not have it."""
        return figures_of(kind, name, self.state, self.totals)


@dataclass(slots=True)
class _Wanted:
    manifest: Manifest
    done: asyncio.Future[None]


class Broker:
    """The admin API at one URL. Every method may raise AdminUnreachable, those that change something AdminRefused."""

    def __init__(self, http_url: str, batch_s: float) -> None:
        self.http_url = http_url
        self._client = AdminClient(http_url)
        self._opened = False
        self._batch_s = batch_s
        self._listing: Listing | None = None
        self._asking = asyncio.Lock()
        self._failures = 0
        self._away_since = 0.0
        self._closed_until = 0.0
        self._why = ""
        #: When the last change through here ended.
        self._changed_at = 0.0
        self._batches: dict[str, list[_Wanted]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._failures == 0

    @property
    def away_s(self) -> float:
        """Seconds since it was found not to answer, 0 if it did when it was asked last."""
        return 0.0 if self.reachable else asyncio.get_running_loop().time() - self._away_since

    def reset(self) -> None:
        """Forget the pause: something says that it may be back."""
        self._closed_until = 0.0

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def listing(self, since: float) -> Listing:
        """Return what the broker says, asked no earlier than ``since`` (of the loop's clock); one request for all.

        What was changed through here before this call is in it.
        """
        since = max(since, self._changed_at)
        if self._listing is not None and self._listing.at >= since and self.reachable:
            return self._listing
        async with self._asking:
            if self._listing is None or self._listing.at < since or not self.reachable:
                at = asyncio.get_running_loop().time()
                state = await self._call("state", self._client.state)
                self._listing = Listing(state, at)
            return self._listing

    async def apply(self, manifest: Manifest) -> None:
        """Make one resource so, together with others of its kind that are asked for at about the same time."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kind = manifest["kind"]
        batch = self._batches.setdefault(kind, [])
        batch.append(_Wanted(manifest, done))
        if len(batch) == 1:
            self._start(self._send_soon(kind))
        await done

    async def delete(self, kind: str, name: str, *, force: bool) -> None:
        """Delete an object with its data; what is not there is done."""
        client = self._client

        async def call() -> None:
            if kind == "Topic":
                await client.delete_topic(TopicName.parse(name), force=force)
            elif kind == "Namespace":
                await client.delete_namespace(NamespaceName.parse(name), force=force)
            else:
                await client.delete_tenant(name, force=force)

        try:
            await self._call("delete", call)
            self._changed_at = asyncio.get_running_loop().time()
        except AdminRefused as error:
            if error.status != 404:
                raise

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_soon(self, kind: str) -> None:
        await asyncio.sleep(self._batch_s)
        batch = self._batches.pop(kind)
        for at in range(0, len(batch), MOST_AT_ONCE):
            await self._send(batch[at : at + MOST_AT_ONCE])

    async def _send(self, batch: Sequence[_Wanted]) -> None:
        """Send manifests; of a refused batch each half by itself, until it is known whom the refusal concerns."""
        text = "\n---\n".join(json.dumps(wanted.manifest) for wanted in batch)
        try:
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
        except BaseException as error:
            _settle(batch, asyncio.CancelledError() if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            _settle(batch, None)

    async def _call(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        if loop.time() < self._closed_until:
            raise AdminUnreachable(self._why)
        if not self._opened:
            await self._client.__aenter__()
            self._opened = True
        try:
            answer = await self._answered(call)
        except AdminUnreachable as error:
            if self.reachable:
                self._away_since = loop.time()
            self._failures += 1
            pause = UNREACHABLE.delay(self._failures)
            self._closed_until, self._why = loop.time() + pause, str(error)
            operator_metrics.BROKER_ATTEMPTS.labels(operation, "unreachable").inc()
            log.warning("a broker does not answer", url=self.http_url, error=str(error), again_s=pause)
            raise
        except AdminRefused:
            self._failures = 0
            operator_metrics.BROKER_ATTEMPTS.labels(operation, "refused").inc()
            raise
        self._failures = 0
        operator_metrics.BROKER_ATTEMPTS.labels(operation, "ok").inc()
        return answer

    async def _answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call; a pod that is gone may leave a connection behind on which nothing ever comes."""
        try:
            async with asyncio.timeout(ANSWER_S):
                return await call()
        except TimeoutError as error:
            raise AdminUnreachable(f"the broker at {self.http_url} does not answer within {ANSWER_S:g} s") from error


def _settle(batch: Sequence[_Wanted], error: BaseException | None) -> None:
    for wanted in batch:
        # Whoever asked may have been cancelled since.
        if not wanted.done.done():
            if error is None:
                wanted.done.set_result(None)
            else:
                wanted.done.set_exception(error)


class Brokers:
    """One :class:`Broker` for each URL."""

    def __init__(self, batch_s: float) -> None:
        self._batch_s = batch_s
        self._brokers: dict[str, Broker] = {}

    def at(self, http_url: str) -> Broker:
        """Return the broker at a URL."""
        if http_url not in self._brokers:
            self._brokers[http_url] = Broker(http_url, self._batch_s)
        return self._brokers[http_url]

    async def keep_only(self, http_urls: set[str]) -> None:
        """Close the sessions with brokers that no resource needs any more."""
        for url in self._brokers.keys() - http_urls:
            await self._brokers.pop(url).close()

    async def close(self) -> None:
        await self.keep_only(set())
