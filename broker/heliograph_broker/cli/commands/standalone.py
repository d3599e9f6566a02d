"""``heliograph standalone``: a broker in this process, until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer
from heliograph_api.broker_config import BrokerConfig

from heliograph_broker.cli.base.shared_options import CliError, usage_error

log = structlog.get_logger(__name__)

#: The options of settings, which are named as these but for those of lists.
_OPTIONS: Final = {
    name: f"--{'superuser' if name == 'superusers' else name}".replace("_", "-")
    for name in (
        "auth",
        "basic_file",
        "bind",
        "broker_port",
        "broker_tls_port",
        "data_dir",
        "http_port",
        "https_port",
        "insecure",
        "oidc_audience",
        "oidc_ca",
        "oidc_issuer",
        "superusers",
        "tls_cert",
        "tls_client_ca",
        "tls_key",
        "tls_only",
        "token_public_key",
        "token_secret_key",
    )
}
#: The settings of the ports with TLS, by those of the ports that they are instead of.
_WITH_TLS: Final = {"broker_port": "broker_tls_port", "http_port": "https_port"}


def standalone(
    context: typer.Context,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Data directory; created if missing.",
        ),
    ] = Path("heliograph-data"),
    broker_port: Annotated[
        int,
        typer.Option(
            "--broker-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port for Pulsar clients; 0: any free port.",
        ),
    ] = 6650,
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port for HTTP; 0: any free port.",
        ),
    ] = 8080,
    bind: Annotated[
        str,
        typer.Option(
            "--bind", metavar="ADDRESS", help="Address that the ports listen on; *: all addresses, of IPv4 and of IPv6."
        ),
    ] = "127.0.0.1",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Listen on an address that other machines reach although there is no authentication."
        ),
    ] = False,
    auth: Annotated[
        list[str] | None,
        typer.Option(
            "--auth",
            metavar="METHOD",
            help="Way in which clients authenticate: token, tls, basic or oidc; may be repeated. Default: none, "
            "everything is allowed.",
        ),
    ] = None,
    token_secret_key: Annotated[
        list[str] | None,
        typer.Option(
            "--token-secret-key",
            metavar="FILE",
            help="Secret key that tokens are verified with, of 'heliograph tokens'; may be repeated.",
        ),
    ] = None,
    token_public_key: Annotated[
        list[str] | None,
        typer.Option(
            "--token-public-key",
            metavar="FILE",
            help="Public key that tokens are verified with, in DER or PEM; may be repeated.",
        ),
    ] = None,
    superuser: Annotated[
        list[str] | None,
        typer.Option("--superuser", metavar="ROLE", help="Role that may do everything; may be repeated."),
    ] = None,
    oidc_issuer: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-issuer",
            metavar="URL",
            help="Accept tokens of this issuer (OpenID Connect); may be repeated.",
        ),
    ] = None,
    oidc_audience: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-audience",
            metavar="AUDIENCE",
            help="Accept issuers' tokens for this audience only; may be repeated.",
        ),
    ] = None,
    oidc_ca: Annotated[
        Path | None,
        typer.Option(
            "--oidc-ca",
            metavar="FILE",
            help="Authorities in PEM of the issuers' servers, read for each fetch of keys. Default: those of the "
            "system.",
            show_default=False,
        ),
    ] = None,
    basic_file: Annotated[
        Path | None,
        typer.Option(
            "--basic-file",
            metavar="FILE",
            help="Users and their passwords' hashes, as htpasswd -B writes them.",
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Certificate of the broker in PEM, for ports with TLS; read again when it changes.",
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", metavar="FILE", help="Private key of the certificate in PEM, without a passphrase."),
    ] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            "--tls-client-ca",
            metavar="FILE",
            help="Authorities in PEM by which certificates of clients are verified; default: none are asked for.",
        ),
    ] = None,
    broker_tls_port: Annotated[
        int | None,
        typer.Option(
            "--broker-tls-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port for Pulsar clients with TLS; 0: any free port. Default: 6651.",
            show_default=False,
        ),
    ] = None,
    https_port: Annotated[
        int | None,
        typer.Option(
            "--https-port",
            min=0,
            max=65535,
            metavar="PORT",
            help="Port for HTTP with TLS; 0: any free port. Default: 8443.",
            show_default=False,
        ),
    ] = None,
    tls_only: Annotated[
        bool | None, typer.Option("--tls-only", help="Open no port without TLS.", show_default=False)
    ] = None,
    filename: Annotated[
        list[Path] | None,
        typer.Option(
            "-f",
            "--filename",
            metavar="FILE_OR_DIR",
            help="Manifests to apply before the broker is ready; may be repeated.",
        ),
    ] = None,
) -> None:
    """Run a broker in this process.

    Prints one line when clients may connect, and logs on stderr:

        ready pulsar://127.0.0.1:6650 http://127.0.0.1:8080

    With --tls-cert, the addresses with TLS follow: pulsar+ssl://127.0.0.1:6651 https://127.0.0.1:8443.

    SIGTERM or Ctrl-C ends it in good order. Confirmed messages and changes stay in the data directory for the next
    start. One process at a time may use a data directory. If the disk fails so that nothing can be stored, the broker
    exits with code 1, to be restarted.

    \b
    Examples:
      heliograph standalone
      heliograph standalone --data-dir /var/lib/heliograph -f examples/flights/
      heliograph standalone --broker-port 0 --http-port 0
      heliograph standalone --auth token --token-secret-key secret.key --superuser admin
      heliograph standalone --tls-cert tls.crt --tls-key tls.key --tls-only
    """
    import uvloop
    from heliograph_api.logging_setup import LoggingError, configure_logging

    from heliograph_broker.server.descriptors import raise_descriptor_limit

    try:
        configure_logging()
    except LoggingError as error:
        raise CliError(str(error)) from error
    options = {
        "auth": _joined("--auth", auth),
        "token_secret_key": _joined("--token-secret-key", token_secret_key),
        "token_public_key": _joined("--token-public-key", token_public_key),
        "oidc_issuer": _joined("--oidc-issuer", oidc_issuer),
        "oidc_audience": _joined("--oidc-audience", oidc_audience),
        "oidc_ca": "" if oidc_ca is None else str(oidc_ca),
        "basic_file": "" if basic_file is None else str(basic_file),
        "superusers": _joined("--superuser", superuser),
        "insecure": insecure,
    }
    tls = {
        "tls_cert": tls_cert and str(tls_cert),
        "tls_key": tls_key and str(tls_key),
        "tls_client_ca": tls_client_ca and str(tls_client_ca),
        "broker_tls_port": broker_tls_port,
        "https_port": https_port,
        "tls_only": tls_only,
    }
    # Those that are left out leave the environment in effect.
    given = {name: value for name, value in options.items() if value}
    given |= {name: value for name, value in tls.items() if value is not None}
    try:
        config = BrokerConfig.from_environment(
            os.environ,
            data_dir=str(data_dir),
            broker_port=broker_port,
            http_port=http_port,
            bind=bind,
            **given,
        )
    except ValueError as error:
        raise CliError(
            f"an option, or a setting in the environment (HELIOGRAPH_…), is wrong: {_with_options(str(error))}"
        ) from error
    if not config.insecure and (exposed := config.exposure()):
        raise CliError(
            f"without authentication, anybody who reaches {exposed} could do everything: switch authentication on "
            "(--auth token --token-secret-key FILE), bind to 127.0.0.1, or say --insecure if you trust that network"
        )
    if config.tls_only:
        _warn_of_closed_ports(context)
    raise_descriptor_limit()
    uvloop.run(_serve(config, filename or []))


def _with_options(reason: str) -> str:
    """Return what is wrong with settings, with the option of each that has one: people have typed options."""
    # At the beginning it is a setting; elsewhere, only a name of several words can be no other word.
    named = re.compile(rf"^({'|'.join(_OPTIONS)})(?=:)|\b({'|'.join(name for name in _OPTIONS if '_' in name)})\b")
    reason = named.sub(lambda found: f"{found[0]} ({_OPTIONS[found[0]]})", reason)
    return re.sub(r"\bauth=(\w+)", r"auth=\1 (--auth \1)", reason)


def _warn_of_closed_ports(context: typer.Context) -> None:
    """Log which of the options have no effect because no port without TLS is opened."""
    for name, option in (("broker_port", "--broker-port"), ("http_port", "--http-port")):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            log.warning("an option has no effect with --tls-only", option=option, instead=_OPTIONS[_WITH_TLS[name]])


def _joined(option: str, texts: list[str] | None) -> str:
    """Return the setting that a repeated option gives. Ends with a usage error for a text that commas would divide."""
    from heliograph_api.tokens.key_sources import source_name, split_sources

    for text in texts or []:
        if split_sources(text) != [text]:
            # The name of a key that is given as data does not show it.
            name = source_name(text)
            usage_error(f"{option} {name} is empty or has a comma; valid: one value, and the option again for others")
    return ",".join(texts or [])


async def _serve(config: BrokerConfig, manifests: list[Path]) -> None:
    from heliograph_api.manifests.manifest_error import ManifestError
    from heliograph_api.tokens.key_sources import KeyUnusable

    from heliograph_broker.clock import SystemClock
    from heliograph_broker.messaging.base.errors import BrokerError
    from heliograph_broker.security.authentication.provider import ProviderUnusable
    from heliograph_broker.security.tls.contexts import TlsError, TlsFiles, load
    from heliograph_broker.server.starting_port import StartingPort
    from heliograph_broker.standalone import Standalone
    from heliograph_broker.storage.base.failure import StorageFull, StoreFailed
    from heliograph_broker.storage.disk.data_dir import DataDirError

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Before the start, so that a signal during a long start also ends in good order.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    broker = Standalone(config, manifests)
    try:
        # Loaded again by the broker, whose data directory may take long to read.
        context = load(TlsFiles.of(config), SystemClock().now_ms()).context if config.tls_cert else None
        port = (config.https_port, context) if config.tls_only else (config.http_port, None)
        with StartingPort(config.bind, *port) as starting:
            await broker.start(starting.close)
    except ProviderUnusable as error:
        raise CliError(_with_options(str(error))) from error
    except (DataDirError, ManifestError, BrokerError, StoreFailed, KeyUnusable, TlsError) as error:
        raise CliError(str(error)) from error
    except OSError as error:
        ports = _ports(config)
        numbers, options = ", ".join(map(str, ports.values())), ", ".join(filter(None, ports))
        raise CliError(
            f"cannot listen on {config.bind}, ports {numbers}: {error}; "
            f"choose others with {options} (0 takes any free port)"
        ) from error
    print("ready", *broker.urls, flush=True)
    failing = asyncio.ensure_future(broker.failed())
    signalled = asyncio.ensure_future(ending.wait())
    await asyncio.wait((failing, signalled), return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    signalled.cancel()
    try:
        await broker.stop()
    except (StoreFailed, StorageFull) as error:
        raise CliError(f"stopped, but not everything could be made durable: {error}") from error


def _ports(config: BrokerConfig) -> dict[str, int]:
    """Return the ports that the broker opens, by the option that chooses each; that of the metrics has none."""
    ports = {} if config.tls_only else {"--broker-port": config.broker_port, "--http-port": config.http_port}
    if config.tls_cert:
        ports |= {"--broker-tls-port": config.broker_tls_port, "--https-port": config.https_port}
    return ports | ({"": config.metrics_port} if config.metrics_port else {})
