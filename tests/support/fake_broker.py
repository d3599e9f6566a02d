"""A peer that speaks the binary protocol by a script, for answers that no broker of these tests gives."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType

from heliograph_api.protocol import wire_pb2 as wire

from .wire_client import Frame, encode, take_frames

Type = wire.BaseCommand
#: Returns the bytes to send for a frame; None ends the connection.
Answer = Callable[[Frame], bytes | None]
CONNECTED = encode(Type.CONNECTED, server_version="Fake", protocol_version=19, max_message_size=5 << 20)


class FakeBroker:
    """Listens on a port of its own, and keeps in ``frames`` all it was sent, connection by connection."""

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        self.frames: list[list[Frame]] = []
        self._answer = answer
        self._context = context
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.url = f"pulsar{'+ssl' if context else ''}://127.0.0.1:{self.port}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> FakeBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60)

    def send(self, data: bytes) -> None:
        """Send bytes over the last connection."""
        self._connections[-1].sendall(data)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        buffer = bytearray()
        frames: list[Frame] = []
        self.frames.append(frames)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            if self._context is not None:
                connection = stack.enter_context(self._context.wrap_socket(connection, server_side=True))
            self._connections.append(connection)
            while received := connection.recv(65536):
                buffer += received
                for frame in take_frames(buffer):
                    frames.append(frame)
                    answer = self._answer(frame)
                    if answer is None:
                        return
                    connection.sendall(answer)
