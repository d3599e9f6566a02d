"""Bytes to and from a broker, over TCP or TLS."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from heliograph_spark.plan.credentials import tls_context, with_named_files
from heliograph_spark.plan.errors import PulsarSourceError

from .failures import LinkLost

#: Bytes of one read from the socket.
_READ_BYTES = 256 << 10
#: Time (s) within which a broker takes some of what is sent.
WRITTEN_WITHIN_S = 30.0
#: The longest time (s) of one wait, which for the system has 31 bits of milliseconds: a longer one is several.
LONGEST_WAIT_S = 3600.0


class Address(NamedTuple):
    """The address of a broker; ``behind`` is its own ``host:port`` where ``host`` and ``port`` are a proxy's."""

    host: str
    port: int
    behind: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" + (f" (proxy of {self.behind})" if self.behind else "")


class Stream:
    """A connection of TCP or TLS, of which one thread may read while others write.

    Raises :class:`LinkLost` if nobody is there within ``within_s``, and :class:`PulsarSourceError` if TLS cannot be
    agreed on.
    """

    def __init__(self, address: Address, settings: Mapping[str, Any], *, secured: bool, within_s: float) -> None:
        self._socket = _opened(address, settings, secured=secured, within_s=within_s)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._sending = threading.Lock()
        #: OpenSSL cannot read and write one connection at the same time.
        self._io = threading.Lock()

    def send(self, data: bytes | memoryview, within_s: float = WRITTEN_WITHIN_S) -> None:
        """Send all of the bytes. Raises :class:`OSError`, also if none of them is taken for ``within_s`` seconds."""
        left = memoryview(data)
        until = time.monotonic() + within_s
        with self._sending:
            while left:
                event = select.POLLOUT
                try:
                    with self._io:
                        left = left[self._socket.send(left) :]
                    until = time.monotonic() + within_s
                    continue
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass
                except ssl.SSLWantReadError:
                    event = select.POLLIN
                if time.monotonic() > until:
                    raise TimeoutError("the broker takes nothing")
                self._wait_for(event, until)

    def receive(self, within_s: float) -> bytes:
        """Return what has come, at least a byte of it; nothing if none came in time. Raises :class:`OSError`."""
        until = time.monotonic() + within_s
        while True:
            event = select.POLLIN
            try:
                with self._io:
                    data = self._socket.recv(_READ_BYTES)
                if data:
                    return data
                raise ConnectionError("the broker closed the connection")
            except (BlockingIOError, ssl.SSLWantReadError):
                pass
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            left = until - time.monotonic()
            if left <= 0:
                return b""
            if event == select.POLLIN:
                self._readable.poll(min(left, LONGEST_WAIT_S) * 1000)
            else:
                self._wait_for(event, until)

    def _wait_for(self, event: int, until: float) -> None:
        ready = select.poll()
        with contextlib.suppress(ValueError):  # It was closed meanwhile.
            ready.register(self._socket, event)
            ready.poll(min(max(0.0, until - time.monotonic()), LONGEST_WAIT_S) * 1000)

    def end(self) -> None:
        """End the connection; a thread that reads or writes learns it at once."""
        with contextlib.suppress(OSError):
            # That of TLS would forget the connection that another thread reads.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back; nobody may be reading."""
        self._socket.close()


def _opened(address: Address, settings: Mapping[str, Any], *, secured: bool, within_s: float) -> socket.socket:
    """Return a connected socket that does not block."""
    what = f"connecting to {address}"
    context = tls_context(with_named_files(settings), "client") if secured else None
    try:
        made = socket.create_connection((address.host, address.port), timeout=min(within_s, LONGEST_WAIT_S))
    except (OSError, UnicodeError) as error:
        raise LinkLost(f"{what}: no connection could be made (service.url): {error}") from error
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            made = context.wrap_socket(made, server_hostname=address.host)
        made.setblocking(False)
    except (ssl.SSLEOFError, ConnectionError, TimeoutError) as error:
        made.close()
        raise LinkLost(f"{what}: the connection ended before TLS was agreed on: {error}") from error
    except (OSError, ValueError) as error:
        made.close()
        raise PulsarSourceError(
            f"{what}: TLS with {address} failed (pulsar.client.tlsTrustCertsFilePath, tlsHostnameVerificationEnable):"
            f" {error}"
        ) from error
    return made
