"""The keys of BrokerClusters in this operator's memory, and the tokens by which it is a client of their brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from heliograph_api.admin.admin_client import AdminUnreachable
from heliograph_api.resources.authentication_spec import OPERATOR_ROLE

from heliograph_operator.decide.signed_tokens import Signer
from heliograph_operator.objects import clock
from heliograph_operator.objects.kinds import BROKER_CLUSTER, Body, Key, key_of

#: Validity of the operator's own tokens, of which half is used.
OWN_VALIDITY: Final = timedelta(hours=1)


@dataclass(slots=True)
class _Access:
    """The access to the brokers of one BrokerCluster."""

    signer: Signer | None = None
    token: str = field(default="", repr=False)
    #: When the token is replaced by another one.
    renewed: datetime = field(default_factory=lambda: datetime.min.replace(tzinfo=UTC))


class BrokerTokens:
    """One :class:`Signer` for each BrokerCluster with authentication, once its keys are known.

    Register :meth:`seen` with the cache, so that no request without a token goes to brokers that need one. ``urls_of``
    returns the URLs of a BrokerCluster's brokers by its name, not by its status: a token goes nowhere else.
    """

    def __init__(self, urls_of: Callable[[Body], Sequence[str]], now: Callable[[], datetime] = clock.now) -> None:
        self._urls_of = urls_of
        self._now = now
        self._accesses: dict[str, _Access] = {}
        self._urls: dict[Key, Sequence[str]] = {}

    def seen(self, before: Body | None, body: Body) -> None:
        """Take in a resource of the cache."""
        if body["kind"] != BROKER_CLUSTER.name:
            return
        if needs_token(body):
            urls = self._urls[key_of(body)] = self._urls_of(body)
            access = self._accesses.get(urls[0]) or _Access()
            self._accesses.update(dict.fromkeys(urls, access))
        else:
            self.forget(key_of(body))

    def forget(self, key: Key) -> None:
        """Take in that a BrokerCluster is gone, or does without authentication."""
        for url in self._urls.pop(key, ()):
            self._accesses.pop(url, None)

    def signer(self, cluster: Key) -> Signer | None:
        """Return the signer of a BrokerCluster; None if it has none, or not yet."""
        access = self._access(cluster)
        return access.signer if access is not None else None

    def use(self, cluster: Body, signer: Signer | None) -> bool:
        """Set the signer of a BrokerCluster; return whether it is another one.

        Without one, the token of the operator itself stays as long as it is valid.
        """
        self.seen(None, cluster)
        access = self._access(key_of(cluster))
        if access is None or access.signer is signer:
            return False
        if signer is not None:
            access.token = ""
        access.signer = signer
        return True

    def _access(self, cluster: Key) -> _Access | None:
        urls = self._urls.get(cluster)
        return self._accesses.get(urls[0]) if urls else None

    def token(self, url: str) -> str:
        """Return the operator's token for the brokers at a URL; empty if they need none.

        Raises :class:`AdminUnreachable` while there is no key to sign one.
        """
        access = self._accesses.get(url)
        if access is None:
            return ""
        now, signer = self._now(), access.signer
        if signer is not None and (not access.token or now >= access.renewed):
            validity = min(OWN_VALIDITY, signer.longest)
            access.token, access.renewed = signer.sign(OPERATOR_ROLE, validity, now), now + validity / 2
        if not access.token:
            raise AdminUnreachable(f"the operator has no key yet to sign its token for {url}")
        return access.token


def needs_token(cluster: Body) -> bool:
    """Whether the spec of a BrokerCluster enables authentication."""
    return (((cluster.get("spec") or {}).get("authentication")) or {}).get("enabled") is True
