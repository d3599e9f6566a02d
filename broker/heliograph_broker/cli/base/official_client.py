"""The official Pulsar client with the credentials of the command that runs; its errors get the broker's reasons."""

from __future__ import annotations

import atexit
import gc
import os
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from .access import Credentials, Token, credentials
from .broker_failures import unreachable
from .contexts import AccessError
from .service_check import ServiceRefused, Use, check_service
from .shared_options import DEFAULT_SERVICE_URL, CliError, call_broker, usage_error

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

#: A broker, or the route to the address of a Kubernetes Service, may come up this time (s) after a command.
CONNECT_S: Final = 10.0
_TRY_AGAIN_S: Final = 0.2
_RELEASED_WITHIN_S: Final = 2.0
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}


@contextmanager
def official_client(service_url: str, connect_s: float, use: Use) -> Iterator[tuple[Any, Any]]:
    """Yield an official client of ``service_url`` and its module; its exceptions become one-line errors.

    Waits ``connect_s`` seconds for a broker, and says so. ``use`` is what the client is for.
    """
    import ssl

    try:
        import pulsar
    except ImportError as error:
        raise CliError(
            "the official Pulsar client is not installed; install it with: pip install 'heliograph[client]'"
        ) from error
    _wait_for_broker(service_url, connect_s)
    shown = credentials()
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=15,
        authentication=_authentication(pulsar, shown),
        # Where none is named, those that Python trusts, as in the other commands.
        tls_trust_certs_file_path=shown.tls_ca or ssl.get_default_verify_paths().cafile,
        tls_validate_hostname=True,
        tls_certificate_file_path=shown.certificate and shown.certificate.certificate,
        tls_private_key_file_path=shown.certificate and shown.certificate.key,
        # Errors come as exceptions; the client's own log would mix with the messages.
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    try:
        yield client, pulsar
    except pulsar.AuthorizationError as error:
        raise CliError(_reason(service_url, use) or f"{service_url}: {error}") from error
    except pulsar.ConnectError as error:
        # Its port has just accepted a connection.
        raise CliError(
            f"{service_url}: {error}: the address that the broker advertises for {use.topic} cannot be reached, or its "
            "certificate is not for that; 'heliograph topics lookup' prints it"
        ) from error
    except pulsar.PulsarException as error:
        raise CliError(f"{service_url}: {error}") from error
    finally:
        client.close()


def _authentication(pulsar: Any, shown: Credentials) -> Any:
    """Return how the official client authenticates, None without credentials."""
    if shown.token is not None and not shown.token.path:
        return pulsar.AuthenticationToken(shown.token.read())
    if shown.token is not None:
        supplier = _LastToken(shown.token)
        atexit.register(_wait_until_released, weakref.ref(supplier))
        return pulsar.AuthenticationToken(supplier)
    if shown.certificate is not None:
        return pulsar.AuthenticationTLS(*shown.certificate)
    return None


class _LastToken:
    """Gives the official client a token as it is now, whenever it connects or the broker asks for a new one.

    If it cannot be read then, the client gets the last one, as it takes no exceptions: the broker decides whether that
    is still valid.
    """

    def __init__(self, token: Token) -> None:
        self._token = token
        self._last = token.read()

    def __call__(self) -> str:
        with suppress(AccessError):
            self._last = self._token.read()
        return self._last


def _wait_until_released(supplier: weakref.ref[_LastToken]) -> None:
    """Return when the threads of a closed client have released its supplier of tokens, mostly at once.

    A thread that does so while the interpreter ends aborts the process.
    """
    deadline = time.monotonic() + _RELEASED_WITHIN_S
    # Frames of an exception may hold the client.
    gc.collect()
    while supplier() is not None and time.monotonic() < deadline:
        time.sleep(0.001)


def _wait_for_broker(service_url: str, connect_s: float) -> None:
    """Return when a broker accepts a connection with the credentials.

    Raises :class:`CliError` if it refuses them, or if its port accepts no connection for ``connect_s`` seconds. The
    official client would try again in silence; a person wants to know at once.
    """
    url = urlsplit(service_url)
    if url.scheme not in _PORTS or not url.hostname:
        usage_error(
            f"--service-url {service_url!r} should start with pulsar:// or pulsar+ssl://, as in {DEFAULT_SERVICE_URL}"
        )
    connection = _connected(url, connect_s)
    if url.scheme in ("http", "https"):
        connection.close()
        _check_lookups(service_url)
        return
    try:
        check_service(connection, service_url, credentials())
    except ServiceRefused as error:
        raise CliError(str(error)) from error


def _connected(url: SplitResult, connect_s: float) -> socket.socket:
    deadline = time.monotonic() + connect_s
    waiting = False
    while True:
        try:
            return socket.create_connection((url.hostname, url.port or _PORTS[url.scheme]), timeout=CONNECT_S)
        except OSError as error:
            reason = f"no broker answers at {url.geturl()}: {error.strerror or error}"
            if time.monotonic() >= deadline:
                raise CliError(unreachable(reason, None, url.geturl(), "--service-url", credentials())) from error
        if not waiting:
            print(f"heliograph: {reason}; trying again for {connect_s:g} s", file=sys.stderr, flush=True)
            waiting = True
        time.sleep(_TRY_AGAIN_S)


def _reason(service_url: str, use: Use) -> str:
    """Return why the broker does not allow ``use``, which the official client does not pass on; empty: unknown."""
    url = urlsplit(service_url)
    if url.scheme not in ("pulsar", "pulsar+ssl"):
        return ""
    try:
        check_service(_connected(url, 0.0), service_url, credentials(), use)
    except (ServiceRefused, CliError) as error:
        return str(error)
    return ""


def _check_lookups(http_url: str) -> None:
    """Raise :class:`CliError` if the broker does not answer at the URL at which topics are looked up by HTTP."""
    from heliograph_api.admin.admin_client import AdminRefused

    async def work(client: AdminClient) -> None:
        try:
            await client.broker_version()
        except AdminRefused as error:
            # Whether the role may see the version does not matter here.
            if error.status == 401:
                raise

    call_broker(http_url, work)
