"""The brokers behind a service URL: which of them has a topic, and what they know of it.

Links are kept by address, and each serves everybody in the process: a worker that runs task after task, or a driver
that follows hundreds of partitions, connects and authenticates once. :func:`shared` has the brokers of a process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_spark.plan.errors import OptionError, PulsarSourceError
from heliograph_spark.plan.options import Connection

from .failures import LinkLost, NoAnswer, Passing, Refused, refusal
from .link import Link
from .stream import Address

#: The official client's defaults.
_CONNECTED_WITHIN_MS = 10_000
_ANSWERED_WITHIN_S = 30.0
_MOST_REDIRECTS = 20
#: How often (s) the links are looked after; a broker closes who does not answer its PING within 30 s, by default.
_LOOKED_AFTER_EVERY_S = 1.0
#: Time (s) between two tries: at first, and at most.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

_T = TypeVar("_T")


def addresses_of(url: str) -> tuple[list[Address], bool]:
    """Return the addresses in a service URL, and whether it asks for TLS. Raises :class:`OptionError`."""
    scheme, separator, hosts = url.partition("://")
    if not separator or scheme not in ("pulsar", "pulsar+ssl"):
        raise OptionError(f"service.url: {url!r} is not an address such as pulsar://localhost:6650")
    secured = scheme == "pulsar+ssl"
    found = []
    for each in hosts.split("/", 1)[0].split(","):
        try:
            parts = urlsplit(f"//{each.strip()}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host:
            raise OptionError(f"service.url: {each!r} in {url!r} is not a host and a port")
        found.append(Address(host, port or (6651 if secured else 6650)))
    return found, secured


class StoredSchema(NamedTuple):
    """A schema as the broker has it, and its version as messages name it."""

    schema: wire.Schema
    version: bytes


class Brokers:
    """The brokers of a service URL of ``pulsar://`` or ``pulsar+ssl://`` with one or several hosts.

    Nothing is connected before the first question. Questions raise :class:`Refused` for a broker's error, and
    :class:`Passing` for what did not succeed within the client's ``operationTimeoutMs`` although it was tried again;
    both name the address and what was asked. Raises :class:`OptionError` for a URL that cannot be understood.
    """

    def __init__(self, connection: Connection) -> None:
        self._service, self._secured = addresses_of(connection.service_url)
        self._settings = connection.client
        self._secured = self._secured or bool(self._settings.get("use_tls"))
        self.answered_within_s = float(self._settings.get("operation_timeout_seconds", _ANSWERED_WITHIN_S))
        self._links: dict[Address, Link] = {}
        self._opening: dict[Address, threading.Lock] = {}
        self._lock = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._closed = threading.Event()
        #: The host of the service URL that answered last.
        self._preferred = 0
        _all.add(self)

    @property
    def closed(self) -> bool:
        """Whether nobody may ask any more."""
        return self._closed.is_set()

    def close(self) -> None:
        """End all links."""
        self._closed.set()
        with self._lock:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.close()

    def forget_links(self) -> None:
        """Begin without links, in a process that is a copy of the one that made them."""
        links = list(self._links.values())
        self._links, self._opening, self._lock, self._keeper = {}, {}, threading.Lock(), None
        closed, self._closed = self.closed, threading.Event()
        if closed:
            self._closed.set()
        for link in links:
            link.forget()

    # Questions

    def partitions(self, topic: str, *, create: bool = False) -> int:
        """Return the number of a topic's partitions, 0 for one that has none.

        With ``create`` a broker whose policy it is to create topics with partitions does so; else nothing is created.
        """
        body = wire.CommandPartitionedTopicMetadata(topic=topic, metadata_auto_creation_enabled=create)
        what = f"asking for the partitions of {topic}"

        def ask(link: Link) -> int:
            answer = link.request("partitionMetadata", body, what, self.answered_within_s)
            if answer.response == wire.CommandPartitionedTopicMetadataResponse.Failed:
                raise refusal(f"{what}: {link.address}", answer.error, answer.message)
            return int(answer.partitions)

        return self._answered(ask)

    def partition_names(self, topic: str, *, create: bool = False) -> list[str]:
        """Return the names of a topic's partitions, in order; its own if it has none. As :meth:`partitions`."""
        count = self.partitions(topic, create=create)
        return [f"{topic}-partition-{at}" for at in range(count)] if count else [topic]

    def topics(self, namespace: str) -> list[str]:
        """Return the names of the persistent topics of ``tenant/namespace``; of a partitioned one each partition's."""
        body = wire.CommandGetTopicsOfNamespace(namespace=namespace, mode=wire.CommandGetTopicsOfNamespace.PERSISTENT)
        what = f"asking for the topics of {namespace}"
        return self._answered(
            lambda link: list(link.request("getTopicsOfNamespace", body, what, self.answered_within_s).topics)
        )

    def schema(self, topic: str, version: bytes | None = None) -> StoredSchema | None:
        """Return a topic's schema of that version, or its latest one; None if there is none."""
        body = wire.CommandGetSchema(topic=topic)
        if version is not None:
            body.schema_version = version
        what = f"asking for the schema of {topic}"

        def ask(link: Link) -> StoredSchema | None:
            answer = link.request("getSchema", body, what, self.answered_within_s)
            if not answer.HasField("error_code"):
                return StoredSchema(answer.schema, answer.schema_version)
            if answer.error_code == wire.TopicNotFound:
                return None
            raise refusal(f"{what}: {link.address}", answer.error_code, answer.error_message)

        try:
            return self._answered(ask)
        except Refused as error:
            if error.code == wire.TopicNotFound:
                return None
            raise

    def _answered(self, ask: Callable[[Link], _T]) -> _T:
        return tried(lambda: ask(self._service_link()), time.monotonic() + self.answered_within_s)

    # Links

    def owner(self, topic: str, assigned: str = "") -> Link:
        """Return a link to the broker that has the topic: the one at the URL ``assigned``, or found by lookups.

        This is tried once: raises :class:`Refused`, :class:`NoAnswer` or :class:`LinkLost`.
        """
        if assigned:
            # An address that is none is as good as none.
            with contextlib.suppress(OptionError):
                return self.link(addresses_of(assigned)[0][0])
        what = f"looking up {topic}"
        link, authoritative = self._service_link(), False
        for _ in range(_MOST_REDIRECTS):
            body = wire.CommandLookupTopic(topic=topic, authoritative=authoritative)
            if self._settings.get("listener_name"):
                body.advertised_listener_name = self._settings["listener_name"]
            answer = link.request("lookupTopic", body, what, self.answered_within_s)
            if answer.response == wire.CommandLookupTopicResponse.Failed:
                raise refusal(f"{what}: {link.address}", answer.error, answer.message)
            link = self.link(self._found(answer, link.address, what))
            if answer.response == wire.CommandLookupTopicResponse.Connect:
                return link
            authoritative = answer.authoritative
        raise NoAnswer(f"{what}: {link.address}: more than {_MOST_REDIRECTS} brokers sent it on to another one")

    def _found(self, answer: wire.CommandLookupTopicResponse, asked: Address, what: str) -> Address:
        url = answer.brokerServiceUrlTls if self._secured else answer.brokerServiceUrl
        if not url:
            kind = "pulsar+ssl://" if self._secured else "pulsar://"
            raise OptionError(f"{what}: {asked}: the broker that has it has no address of {kind} (service.url)")
        try:
            found = addresses_of(url)[0][0]
        except OptionError as error:
            raise PulsarSourceError(f"{what}: {asked}: it names a broker by {url!r}, which is no address") from error
        if answer.proxy_through_service_url:
            return asked._replace(behind=str(found))
        return found

    def _service_link(self) -> Link:
        """Return a link to a host of the service URL, the one of last time if it is there."""
        first = self._preferred
        for at in range(first, first + len(self._service)):
            try:
                link = self.link(self._service[at % len(self._service)])
            except LinkLost:
                if at == first + len(self._service) - 1:
                    raise
            else:
                self._preferred = at % len(self._service)
                return link
        raise AssertionError("a service URL has a host")

    def link(self, address: Address) -> Link:
        """Return the link to a broker, a new one if there is none or it is broken. Raises as :class:`Link` does."""
        with self._lock:
            opening = self._opening.setdefault(address, threading.Lock())
        with opening:
            link = self._links.get(address)
            if link is not None:
                link.keep_alive()
                if not link.lost:
                    return link
            if self.closed:
                raise LinkLost(f"connecting to {address}: these brokers were closed")
            within_s = self._settings.get("connection_timeout_ms", _CONNECTED_WITHIN_MS) / 1000
            link = Link(address, self._settings, secured=self._secured, within_s=within_s)
            with self._lock:
                self._links[address] = link
                if self._keeper is None:
                    self._keeper = threading.Thread(target=self._keep, name="heliograph-links", daemon=True)
                    self._keeper.start()
            return link

    def _keep(self) -> None:
        while not self._closed.wait(_LOOKED_AFTER_EVERY_S):
            for link in list(self._links.values()):
                # The next user of the link gets the error.
                with contextlib.suppress(Exception):
                    link.keep_alive()


def tried(ask: Callable[[], _T], until: float) -> _T:
    """Return what ``ask`` returns, called again while it raises :class:`Passing`, up to the time ``until`` (monotonic).

    Raises the last error at that time.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except Passing:
            if time.monotonic() + pause_s > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


_shared: dict[Any, Brokers] = {}
_choosing = threading.Lock()
_all: weakref.WeakSet[Brokers] = weakref.WeakSet()


def shared(connection: Connection) -> Brokers:
    """Return this process's brokers of these options, whose links stay for the next one who asks.

    Raises :class:`OptionError`.
    """
    key = connection.service_url, tuple(sorted(connection.client.items()))
    with _choosing:
        brokers = _shared.get(key)
        if brokers is None or brokers.closed:
            _shared[key] = brokers = Brokers(connection)
        return brokers


def _after_fork() -> None:
    """Let the child connect by itself: bytes of the parent's connections would come to one of the two."""
    global _choosing
    _choosing = threading.Lock()
    for brokers in list(_all):
        brokers.forget_links()


os.register_at_fork(after_in_child=_after_fork)
