"""Bytes that a connection has received and not handled yet; all connections read into one shared buffer.

A connection that has handled all it received holds no buffer. The beginning of a frame stays in the shared buffer until
another connection reads: only then it is copied, to be laid in front of the next read. A frame that does not fit the
shared buffer gets a buffer that grows with what arrives, so that announcing a large frame costs nothing; the rest of it
is then read right into its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

_EMPTY = b""
#: The buffer of a large frame grows to this multiple of its contents.
_GROWTH = 16


class SharedBuffer:
    """One read of whichever connection it was, and what that connection has left in it.

    ``crowded`` is called when the buffers of large frames have grown and take more than ``large_limit`` bytes together.
    """

    __slots__ = ("_crowded", "_large_limit", "large_bytes", "owner", "view")

    def __init__(self, size: int, large_limit: int = sys.maxsize, crowded: Callable[[], object] = lambda: None) -> None:
        self.view = memoryview(bytearray(size))
        self.owner: ReceiveBuffer | None = None
        self.large_bytes = 0
        self._large_limit = large_limit
        self._crowded = crowded

    def large_buffer(self, size: int, content: memoryview | bytearray) -> bytearray:
        """Return a new buffer of ``size`` bytes that begins with ``content``, and count it."""
        made = bytearray(size)
        made[: len(content)] = content
        self.large_bytes += size
        if self.large_bytes > self._large_limit:
            self._crowded()
        return made


class ReceiveBuffer:
    """One connection's part of a ``shared`` buffer."""

    __slots__ = ("_end", "_frame_bytes", "_kept", "_large", "_shared", "_start")

    def __init__(self, shared: SharedBuffer) -> None:
        self._shared = shared
        #: The unhandled bytes: these of the large buffer, else of the shared one if that is ours, else ``_kept``.
        self._start = 0
        self._end = 0
        self._kept = _EMPTY
        #: The beginning of one frame of ``_frame_bytes`` that is larger than the shared buffer.
        self._large: bytearray | None = None
        self._frame_bytes = 0

    def __len__(self) -> int:
        """Return the bytes kept for the connection alone."""
        return len(self._kept) if self._large is None else len(self._large)

    def room(self) -> memoryview:
        """Return where the next read goes; there is some while what is not handled is the beginning of a frame."""
        if self._large is not None:
            return self._room_for_large(self._large)
        shared = self._shared
        view = shared.view
        if shared.owner is not self:
            if shared.owner is not None:
                shared.owner._make_way()
            shared.owner = self
            self._start, self._end = 0, len(self._kept)
            if self._kept:
                view[: self._end] = self._kept
                self._kept = _EMPTY
        elif self._end == len(view) or self._start + self._frame_bytes > len(view):
            left = self._end - self._start
            if self._start:
                view[:left] = bytes(view[self._start : self._end])
            self._start, self._end = 0, left
        return view[self._end :]

    def _room_for_large(self, large: bytearray) -> memoryview:
        if self._end == len(large):
            size = min(self._frame_bytes, _GROWTH * len(large))
            self._shared.large_bytes -= len(large)
            self._large = large = self._shared.large_buffer(size, large)
        return memoryview(large)[self._end :]

    def _make_way(self) -> None:
        """Move unread bytes out of the shared buffer, because another connection reads."""
        self._kept = bytes(self._shared.view[self._start : self._end])

    def received(self, count: int) -> None:
        """Add ``count`` bytes, which were written to the room given last."""
        self._end += count

    def rest(self) -> memoryview:
        """Return all that is not handled."""
        if self._large is not None:
            return memoryview(self._large)[: self._end]
        if self._shared.owner is self:
            return self._shared.view[self._start : self._end]
        return memoryview(self._kept)

    def handled(self, count: int, frame_bytes: int) -> None:
        """Forget ``count`` bytes; what follows is the beginning of a frame of ``frame_bytes``, 0 if not known."""
        shared = self._shared
        if self._large is not None:
            if not count:
                return
            # There is never more in it than the one frame.
            self.clear()
        elif shared.owner is self:
            self._start += count
            rest = self._end - self._start
            self._frame_bytes = frame_bytes
            if not rest:
                self.clear()
            elif frame_bytes > len(shared.view) and rest >= len(shared.view) // 2:
                self._large = shared.large_buffer(
                    min(frame_bytes, _GROWTH * rest), shared.view[self._start : self._end]
                )
                self._start, self._end = 0, rest
                shared.owner = None
        else:
            self._kept = self._kept[count:]
            self._frame_bytes = frame_bytes

    def clear(self) -> None:
        """Forget everything."""
        if self._shared.owner is self:
            self._shared.owner = None
        if self._large is not None:
            self._shared.large_bytes -= len(self._large)
            self._large = None
        self._start = self._end = self._frame_bytes = 0
        self._kept = _EMPTY
