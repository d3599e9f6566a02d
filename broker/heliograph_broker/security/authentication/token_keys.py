"""The keys that a broker trusts for tokens, read again when their files change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog
from heliograph_api.tokens.key_sources import KeyUnusable, parse_source, read_source, source_name
from heliograph_api.tokens.keys import TokenKey, public_keys, secret_keys

from heliograph_broker.clock import Clock

log = structlog.get_logger(__name__)

#: Time (s) for which keys that were read are taken as still the same.
CHECK_INTERVAL_S = 1.0
#: Longest time (s) that an authentication waits for the files; then it goes on with the keys that are known.
PATIENCE_S = 5.0


class _KeySource:
    """One file, its last content that was usable, and the keys in it."""

    def __init__(self, source: str, parse: Callable[[bytes], list[TokenKey]]) -> None:
        self.name = source_name(source)
        self.keys: list[TokenKey] = []
        self._source = source
        self._parse = parse
        self._content = b""
        self._problem = ""

    def read(self) -> bool:
        """Read the file. Return whether its content has changed. Raises :class:`KeyUnusable`."""
        content = read_source(self._source)
        if content == self._content:
            return False
        self.keys = parse_source(self._source, content, self._parse)
        self._content = content
        return True

    def read_again(self) -> None:
        """As :meth:`read`, but a file that is unusable now leaves its keys as they are, and is logged once."""
        try:
            changed = self.read()
        except KeyUnusable as error:
            if str(error) != self._problem:
                log.error("a token key cannot be read; the one before stays valid", key=self.name, error=str(error))
            self._problem = str(error)
            return
        if changed:
            log.info("a token key has changed", key=self.name)
        elif self._problem:
            log.info("a token key can be read again, and is the same", key=self.name)
        self._problem = ""


class TrustedKeys:
    """All keys that tokens are verified with; ``version`` counts their changes."""

    def __init__(self, secrets: Iterable[str], publics: Iterable[str], clock: Clock) -> None:
        """Read the keys, which blocks. Raises :class:`KeyUnusable` with the name of the source."""
        self._clock = clock
        self._sources = [_KeySource(source, secret_keys) for source in secrets]
        self._sources += [_KeySource(source, public_keys) for source in publics]
        for each in self._sources:
            each.read()
        self.version = 0
        #: How often a change has taken away a key.
        self.removals = 0
        self.keys = self._all()
        self._reading: asyncio.Task[None] | None = None
        self._read_at = clock.monotonic()

    async def refresh(self) -> None:
        """Read the files again, in a thread, unless that was done less than :data:`CHECK_INTERVAL_S` ago."""
        now = self._clock.monotonic()
        if self._reading is None:
            if now - self._read_at < CHECK_INTERVAL_S:
                return
            self._read_at = now
            self._reading = asyncio.create_task(asyncio.to_thread(self._read_again))
            self._reading.add_done_callback(self._take)
        elif now - self._read_at > PATIENCE_S:
            return
        await asyncio.wait((self._reading,), timeout=PATIENCE_S)

    def _read_again(self) -> None:
        for each in self._sources:
            each.read_again()

    def _take(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        before, now = self.keys, self._all()
        if now != before:
            self.keys = now
            self.version += 1
            left = [each.key for each in now]
            self.removals += any(each.key not in left for each in before)
        if not task.cancelled():
            task.result()

    def _all(self) -> tuple[TokenKey, ...]:
        return tuple(key for each in self._sources for key in each.keys)
