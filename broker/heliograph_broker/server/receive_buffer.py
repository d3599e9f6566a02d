"""What a connection has received and not handled yet; all connections of a loop read into one shared buffer.

A connection that has handled all it received holds no buffer. The beginning of a frame is kept as bytes of its own and
laid in front of the next read. A frame that does not fit the shared buffer gets a buffer that grows with what
arrives, so that announcing a large frame costs nothing; the rest of it is then read right into its place.
"""

from __future__ import annotations

_EMPTY = b""


class ReceiveBuffer:
    """One connection's part; ``shared`` is lent to it between :meth:`room` and the end of the frames' handling."""

    __slots__ = ("_filled", "_frame_bytes", "_kept", "_large", "_shared")

    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._kept = _EMPTY
        #: The beginning of one frame of ``_frame_bytes`` that is larger than the shared buffer.
        self._large: bytearray | None = None
        self._frame_bytes = 0
        self._filled = 0

    def __len__(self) -> int:
        """Return the bytes kept for the connection alone."""
        return len(self._kept) if self._large is None else len(self._large)

    def room(self) -> memoryview:
        """Return where the next read goes."""
        large = self._large
        if large is None:
            kept = len(self._kept)
            if not kept:
                return self._shared
            self._shared[:kept] = self._kept
            return self._shared[kept:]
        if self._filled == len(large):
            self._large = grown = bytearray(min(self._frame_bytes, 4 * len(large)))
            grown[: self._filled] = large
            large = grown
        return memoryview(large)[self._filled :]

    def received(self, count: int) -> memoryview:
        """Return all that is not handled: ``count`` more bytes are in the room given last."""
        if self._large is not None:
            self._filled += count
            return memoryview(self._large)[: self._filled]
        return self._shared[: len(self._kept) + count]

    def rest(self) -> memoryview:
        """Return what :meth:`keep` kept."""
        return memoryview(self._kept) if self._large is None else memoryview(self._large)[: self._filled]

    def keep(self, unhandled: memoryview, start: int, frame_bytes: int) -> None:
        """Keep ``unhandled`` from ``start`` on: the beginning of a frame of ``frame_bytes``, 0 if not known."""
        rest = len(unhandled) - start
        if self._large is not None and rest and not start:
            return
        self._large = None
        if frame_bytes > len(self._shared) and rest >= len(self._shared) // 2:
            self._frame_bytes = frame_bytes
            self._filled = rest
            self._large = bytearray(min(frame_bytes, 4 * rest))
            self._large[:rest] = unhandled[start:]
            self._kept = _EMPTY
        else:
            self._kept = bytes(unhandled[start:]) if rest else _EMPTY

    def clear(self) -> None:
        """Forget everything."""
        self._large = None
        self._kept = _EMPTY
