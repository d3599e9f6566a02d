"""The Kubernetes that the broker runs in, as an issuer of tokens: those of its service accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from .authority_file import AuthorityFile
from .claims import claimed_issuer
from .jwks import KeySet
from .provider import ProviderUnusable
from .published_keys import DISCOVERY_PATH, FETCH_S, FetchFailed, documents

#: The directory where Kubernetes puts a pod's credentials.
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_SERVER: Final = "https://kubernetes.default.svc"
_KEYS_PATH: Final = "/openid/v1/jwks"
_MAX_TOKEN_BYTES: Final = 64 * 1024


class ClusterKeys:
    """The keys that sign the tokens of a cluster's service accounts, from its API server.

    The issuer is that of the pod's own token: clusters of cloud providers have others than :data:`API_SERVER`. The
    pod's token goes to the API server only, whatever address of keys that publishes. Kubernetes lets every service
    account read both documents (ClusterRole ``system:service-account-issuer-discovery``).
    """

    def __init__(
        self, directory: Path = SERVICE_ACCOUNT, api_server: str = API_SERVER, *, within_s: float = FETCH_S
    ) -> None:
        """Raises :class:`ProviderUnusable` if the directory has no token of a service account."""
        self._directory = directory
        self._api_server = api_server
        self._within_s = within_s
        try:
            self.issuer = claimed_issuer(self._token().encode())
        except FetchFailed as error:
            raise ProviderUnusable(
                f"oidc_kubernetes: {error}; valid: true in a pod with a service account's token"
            ) from None
        if not self.issuer:
            raise ProviderUnusable(f"oidc_kubernetes: {directory / 'token'} is no token with an issuer")

    async def fetch(self) -> KeySet:
        async with documents(AuthorityFile(self._directory / "ca.crt"), self._within_s) as reader:
            # The kubelet replaces it before it expires.
            bearer = await asyncio.to_thread(self._token)
            await reader.discover(self._api_server + DISCOVERY_PATH, self.issuer, bearer)
            return await reader.key_set(self._api_server + _KEYS_PATH, bearer)

    def _token(self) -> str:
        path = self._directory / "token"
        try:
            with path.open("rb") as file:
                return file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FetchFailed(f"{path} cannot be read: {type(error).__name__}") from None
