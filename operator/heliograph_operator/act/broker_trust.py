"""The authorities by which this operator verifies the certificates of the brokers of BrokerClusters."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph_api.admin.admin_client import AdminUnreachable

from heliograph_operator.objects.kinds import Key

_ENCRYPTED = "https://"


class BrokerTrust:
    """The certificates of authorities for each BrokerCluster with TLS, once they are known."""

    def __init__(self) -> None:
        self._bundles: dict[Key, str] = {}
        self._clusters: dict[str, Key] = {}

    def use(self, cluster: Key, urls: Sequence[str], bundle: str) -> bool:
        """Verify what answers at ``urls`` by ``bundle`` (PEM; empty: the authorities of the system).

        Return whether these are other authorities than before.
        """
        before = self._bundles.get(cluster)
        self._clusters.update(dict.fromkeys(urls, cluster))
        self._bundles[cluster] = bundle
        return before != bundle

    def forget(self, cluster: Key) -> None:
        """Take in that a BrokerCluster is gone, or does without TLS."""
        self._bundles.pop(cluster, None)
        self._clusters = {url: each for url, each in self._clusters.items() if each != cluster}

    def bundle(self, cluster: Key) -> str | None:
        """Return the authorities of a BrokerCluster; None if it has none, or not yet."""
        return self._bundles.get(cluster)

    def trusted(self, url: str) -> str:
        """Return the authorities of the brokers at a URL.

        Raises :class:`AdminUnreachable` while they are not known: others could pose as the brokers.
        """
        if not url.startswith(_ENCRYPTED):
            return ""
        if url not in self._clusters:
            raise AdminUnreachable(f"the operator does not know yet which authorities to trust at {url}")
        return self._bundles[self._clusters[url]]
