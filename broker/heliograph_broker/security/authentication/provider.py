"""The interface of one way to authenticate."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from heliograph_broker.security.identity import Identity


class Unauthenticated(Exception):
    """The credentials do not show who the client is.

    ``str(error)`` goes to the client: what a person can do about it, and nothing that an attacker could learn from.
    ``detail`` is for the broker's log; it holds no secret either.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail or reason


class MayNotSpeak(Unauthenticated):
    """The client is known, but may not speak for the role that it names, or is a proxy and names none."""


class ProviderUnusable(ValueError):
    """A way to authenticate cannot be switched on: ``str(error)`` names the setting that is wrong, and no secret."""


class Credentials(msgspec.Struct, frozen=True):
    """The data of a client's method, and its verified certificate (DER), if it has sent one."""

    data: bytes = b""
    certificate: bytes = b""


class KeyFetches(NamedTuple):
    """Fetches of an issuer's keys since the start, and the age (s) of those in use; None: there are none."""

    issuer: str
    succeeded: int
    failed: int
    age_s: float | None


class Provider:
    """One way to authenticate, by the name that Pulsar's clients have for it (``auth_method_name``)."""

    method: str

    def start(self) -> None:
        """Begin what goes on beside the authentications, on the running event loop."""

    async def close(self) -> None:
        """End what goes on beside the authentications."""

    def key_fetches(self) -> list[KeyFetches]:
        """Return the state of each issuer whose keys are fetched."""
        return []

    @property
    def withdrawals(self) -> int:
        """Grows when credentials that were accepted might not be any more, such as those of a key that was removed."""
        return 0

    async def refresh(self) -> None:
        """Read again what may have changed, so that ``withdrawals`` is right though nobody authenticates."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return who the credentials belong to. Raises :class:`Unauthenticated`."""
        raise NotImplementedError
