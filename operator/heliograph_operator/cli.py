"""The command ``heliograph-operator``."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Annotated

import typer
from heliograph_api.logging_setup import LoggingError, configure_logging

from .operator_settings import ARCHIVE_IMAGE, BROKER_IMAGE, Settings
from .running import run

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _group() -> None:
    """Makes what BrokerCluster, Tenant, Namespace and Topic resources say so, and keeps it so."""


@app.command("run")
def run_command(
    namespace: Annotated[
        list[str] | None,
        typer.Option(envvar="HELIOGRAPH_OPERATOR_NAMESPACES", help="Kubernetes namespace to serve; again for more"),
    ] = None,
    bind: Annotated[str, typer.Option(envvar="HELIOGRAPH_OPERATOR_BIND", help="Address of /metrics")] = "0.0.0.0",
    port: Annotated[int, typer.Option(envvar="HELIOGRAPH_OPERATOR_PORT", help="Port of /healthz and /metrics")] = 8090,
    workers: Annotated[int, typer.Option(envvar="HELIOGRAPH_OPERATOR_WORKERS", min=1, max=256)] = 16,
    refresh: Annotated[
        float, typer.Option(envvar="HELIOGRAPH_OPERATOR_REFRESH", help="Seconds between looks at a broker", min=1)
    ] = 15.0,
    deletion_wait: Annotated[
        float,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_DELETION_WAIT",
            help="Seconds a deletion waits for a broker that does not answer, before it goes and leaves the data",
            min=0,
        ),
    ] = 600.0,
    broker_image: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_BROKER_IMAGE", help="Image of brokers that name none")
    ] = BROKER_IMAGE,
    archive_image: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_ARCHIVE_IMAGE", help="Image of archives that name none")
    ] = ARCHIVE_IMAGE,
    archive_service_account: Annotated[
        str,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_ARCHIVE_SERVICE_ACCOUNT",
            help="ServiceAccount of archives that name none; empty: the namespace's own, without a token",
        ),
    ] = "",
    cluster_domain: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_CLUSTER_DOMAIN", help="DNS domain of the Kubernetes cluster")
    ] = "cluster.local",
    lease: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_LEASE", help="Lease that decides who leads; empty: none")
    ] = "",
    operator_namespace: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_NAMESPACE", help="Where the operator and its Lease are")
    ] = "default",
    log_level: Annotated[
        str | None, typer.Option(envvar="HELIOGRAPH_LOG_LEVEL", help="debug, info (default), warning or error")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(envvar="HELIOGRAPH_LOG_FORMAT", help="json or console (default on a terminal)")
    ] = None,
) -> None:
    """Serve resources until SIGTERM. Without --namespace those of all Kubernetes namespaces."""
    try:
        configure_logging(log_format, log_level)
    except LoggingError as error:
        raise typer.BadParameter(str(error)) from error
    settings = Settings(
        namespaces=tuple(namespace or ()),
        bind=bind,
        port=port,
        workers=workers,
        refresh_s=refresh,
        deletion_wait_s=deletion_wait,
        broker_image=broker_image,
        archive_image=archive_image,
        archive_service_account=archive_service_account,
        cluster_domain=cluster_domain,
        lease=lease,
        operator_namespace=operator_namespace,
        identity=socket.gethostname(),
    )
    sys.exit(asyncio.run(run(settings)))


def main() -> None:
    app()


if __name__ == "__main__":
    main()
