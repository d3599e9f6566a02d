"""A relay between clients and a real broker, which keeps what the clients send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .broker_process import BrokerProcess
from .ports import free_ports

#: Time (s) in which the threads of a relay end.
ENDS_WITHIN_S = 60.0


class Relay:
    """Passes connections on to a port of this machine, and keeps what clients send: one stream a connection."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.streams: list[bytearray] = []
        self._open: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []

    def serve(self, port: int) -> None:
        """Accept connections to ``port`` until :meth:`stop`."""
        self._begin(self._accept, port)

    def _begin(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, port: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", port))
                stream = bytearray()
                self.streams.append(stream)
                self._open += [near, far]
                self._begin(self._connected, near, far, stream)

    def _connected(self, near: socket.socket, far: socket.socket, stream: bytearray) -> None:
        with near, far:
            back = self._begin(self._pass_on, far, near, None)
            self._pass_on(near, far, stream)
            back.join()

    def _pass_on(self, source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def stop(self) -> None:
        """End it with all its connections."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(ENDS_WITHIN_S)
        self._listening.close()


@contextlib.contextmanager
def relayed(data_dir: Path) -> Iterator[tuple[BrokerProcess, Relay]]:
    """Run a broker that advertises a relay as the address of its binary port."""
    relay = Relay()
    listener = f"relay:pulsar://127.0.0.1:{relay.port}"
    # Its ready line has the relay's port, so it cannot choose its own.
    (port,) = free_ports(1)
    broker = BrokerProcess(
        data_dir,
        environment={"HELIOGRAPH_ADVERTISED_LISTENERS": listener},
        arguments=["--broker-port", str(port)],
    )
    try:
        with broker:
            relay.serve(port)
            yield broker, relay
    finally:
        relay.stop()
