"""The keys of one issuer as they are known now: fetched once for all who wait, refreshed in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog
from heliograph_api.tokens.keys import TokenKey

from heliograph_broker.clock import Clock

from .jwks import KeySet
from .published_keys import FetchFailed, KeySource

log = structlog.get_logger(__name__)

#: Age (s) from which keys are fetched again in the background.
REFRESH_S: Final = 300.0
#: Age (s) from which callers wait for that fetch: the keys may have been replaced meanwhile.
STALE_S: Final = 2 * REFRESH_S
#: Age (s) from which keys are no longer used. Pulsar's cache keeps them as long.
KEEP_S: Final = 24 * 3600.0
#: Shortest pause (s) between two fetches, whatever ids tokens name.
PAUSE_S: Final = 5.0
#: Longest pause (s) after fetches that failed; each failure doubles it.
MAX_PAUSE_S: Final = 60.0


class IssuerKeys:
    """The keys of the issuer that ``source`` is for.

    ``fetches``, ``failures`` and ``removals`` (fetches that took away a key) count since the start; ``last_failure`` is
    empty after a fetch that succeeded.
    """

    def __init__(self, source: KeySource, clock: Clock) -> None:
        self.issuer = source.issuer
        self.fetches = 0
        self.failures = 0
        self.removals = 0
        self.last_failure = ""
        self._source = source
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._next_fetch_at = clock.monotonic()
        self._pause_s = PAUSE_S
        self._fetching: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the keys were fetched; None: there are none."""
        return None if self._keys is None else self._clock.monotonic() - self._fetched_at

    def refresh(self) -> None:
        """Fetch the keys in the background, unless they are being fetched or it is too soon."""
        if self._fetching is None and self._clock.monotonic() >= self._next_fetch_at:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch())

    def refresh_if_old(self) -> None:
        """Fetch the keys in the background if they are old, or not known."""
        age_s = self.age_s
        if age_s is None or age_s >= REFRESH_S:
            self.refresh()

    async def find(self, key_id: str | None) -> Sequence[TokenKey] | None:
        """Return the keys of this id, which may be none; None: no keys of the issuer are known at this time."""
        age_s = self.age_s
        if age_s is None or age_s >= STALE_S:
            await self._refreshed()
        else:
            self.refresh_if_old()
        found = self._with_id(key_id)
        if not found and found is not None and key_id is not None:
            # The issuer may have new keys.
            await self._refreshed()
            found = self._with_id(key_id)
        return found

    def _with_id(self, key_id: str | None) -> Sequence[TokenKey] | None:
        if self._keys is None or self._clock.monotonic() - self._fetched_at >= KEEP_S:
            return None
        return self._keys.with_id(key_id)

    async def _refreshed(self) -> None:
        """Wait for the fetch that is under way or due now. A caller that is cancelled does not end it."""
        self.refresh()
        if self._fetching is not None:
            await asyncio.wait((self._fetching,))

    async def _fetch(self) -> None:
        try:
            keys = await self._source.fetch()
        except FetchFailed as error:
            self._failed(str(error))
        except Exception as error:
            # Clients must not see an error of ours instead of a refusal.
            log.exception("fetching the keys of an issuer failed", issuer=self.issuer)
            self._failed(type(error).__name__)
        else:
            self._succeeded(keys)
        finally:
            self._next_fetch_at = self._clock.monotonic() + self._pause_s
            self._fetching = None

    def _failed(self, reason: str) -> None:
        self.fetches += 1
        # The pause that starts now; it grows from one failure to the next.
        self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2) if self.last_failure else PAUSE_S
        self.failures += 1
        self.last_failure = reason
        log.warning(
            "could not fetch the keys of an issuer; those that are known stay in use",
            issuer=self.issuer,
            error=reason,
            known=0 if self._keys is None else len(self._keys),
            age_s=None if self.age_s is None else round(self.age_s),
            dropped_at_age_s=round(KEEP_S),
        )

    def _succeeded(self, keys: KeySet) -> None:
        if self._keys is None or self.last_failure:
            log.info("fetched the keys of an issuer", issuer=self.issuer, keys=len(keys))
        if keys.left_out and (self._keys is None or self._keys.left_out != keys.left_out):
            log.warning("some keys of an issuer are not used", issuer=self.issuer, reasons=list(keys.left_out))
        self.removals += self._keys is not None and keys.lacks_one_of(self._keys)
        self.fetches += 1
        self._keys = keys
        self._fetched_at = self._clock.monotonic()
        self._pause_s = PAUSE_S
        self.last_failure = ""

    async def close(self) -> None:
        """End a fetch that is under way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
