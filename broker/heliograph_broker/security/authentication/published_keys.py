"""Fetches the keys that an issuer of tokens publishes: OpenID Connect Discovery, then the key set it names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import aiohttp
from heliograph_api.values.issuers import is_trustworthy_url
from heliograph_api.values.quoting import quoted

from .authority_file import SYSTEM, AuthoritiesUnusable, AuthorityFile
from .jwks import InvalidKeySet, KeySet, parse_key_set

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
MAX_DOCUMENT_BYTES: Final = 256 * 1024
#: Time (s) for both documents together: a client that waits for them must still be in time with its handshake.
FETCH_S: Final = 5.0


class FetchFailed(Exception):
    """The keys could not be fetched; ``str(error)`` is for the log."""


class KeySource(Protocol):
    """The keys of one issuer, wherever they are."""

    issuer: str

    async def fetch(self) -> KeySet:
        """Return the keys as they are now. Raises :class:`FetchFailed`."""


class Documents:
    """Reads JSON documents from the servers of issuers; made by :func:`documents`."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def read(self, url: str, bearer: str = "") -> bytes:
        """Return a document. Raises :class:`FetchFailed`."""
        # Kubernetes has its keys in the first form only (RFC 7517). Compressed content could grow without limit.
        headers = {"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"}
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        # A redirection could leave the server that is trusted.
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise FetchFailed(f"{url} answers with status {response.status}; valid: 200")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise FetchFailed(f"{url} answers with compressed content, which was not asked for")
            content = bytearray()
            async for chunk in response.content.iter_any():
                content += chunk
                if len(content) > MAX_DOCUMENT_BYTES:
                    raise FetchFailed(f"{url} answers with more than {MAX_DOCUMENT_BYTES} bytes")
            return bytes(content)

    async def discover(self, url: str, issuer: str, bearer: str = "") -> dict[str, Any]:
        """Return the discovery document at ``url``, which is for ``issuer``. Raises :class:`FetchFailed`."""
        content = await self.read(url, bearer)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise FetchFailed(f"{url} is no JSON") from None
        if not isinstance(document, dict):
            raise FetchFailed(f"{url} is no JSON object")
        if document.get("issuer") != issuer:
            raise FetchFailed(f"{url} is for the issuer {quoted(document.get('issuer'))}; valid: {quoted(issuer)}")
        return document

    async def key_set(self, url: str, bearer: str = "") -> KeySet:
        """Return the key set at ``url``. Raises :class:`FetchFailed`."""
        content = await self.read(url, bearer)
        try:
            return parse_key_set(content)
        except InvalidKeySet as error:
            raise FetchFailed(f"{url}: {error}") from None


@asynccontextmanager
async def documents(authorities: AuthorityFile, within_s: float) -> AsyncIterator[Documents]:
    """Yield a reader for ``within_s`` that trusts ``authorities`` as they are in their file now.

    Raises :class:`FetchFailed` for whatever goes wrong in its context with files, connections and time.
    """
    try:
        async with asyncio.timeout(within_s):
            connector = aiohttp.TCPConnector(ssl=await asyncio.to_thread(authorities.context))
            # The default is five minutes, which the time around it cuts short.
            async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
                yield Documents(session)
    except TimeoutError:
        raise FetchFailed(f"no complete answer within {within_s:g} s") from None
    except AuthoritiesUnusable as error:
        raise FetchFailed(str(error)) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchFailed(f"{type(error).__name__}: {error}") from error


class DiscoveredKeys:
    """The keys of an issuer that any client can reach at the address that is its name."""

    def __init__(self, issuer: str, authorities: AuthorityFile = SYSTEM, *, within_s: float = FETCH_S) -> None:
        self.issuer = issuer
        self._authorities = authorities
        self._within_s = within_s

    async def fetch(self) -> KeySet:
        async with documents(self._authorities, self._within_s) as reader:
            document = await reader.discover(self.issuer.rstrip("/") + DISCOVERY_PATH, self.issuer)
            url = document.get("jwks_uri")
            if not isinstance(url, str) or not is_trustworthy_url(url):
                raise FetchFailed(f"the jwks_uri {quoted(url)} of {self.issuer} is not encrypted; valid: https://…")
            if self.issuer.startswith("https:") and not url.startswith("https:"):
                raise FetchFailed(f"the jwks_uri {quoted(url)} of {self.issuer} is not encrypted; valid: https://…")
            return await reader.key_set(url)
