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

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def _group() -> None:
    """Reconciles resources of heliograph.dev with brokers."""


@app.command("run")
def run_command(
    namespace: Annotated[
        list[str] | None,
        typer.Option(envvar="HELIOGRAPH_OPERATOR_NAMESPACES", help="Kubernetes namespace to watch; may be repeated"),
    ] = None,
    bind: Annotated[
        str,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_BIND", help="Address to serve /healthz, /readyz and /metrics on; *: all"
        ),
    ] = "*",
    port: Annotated[
        int, typer.Option(envvar="HELIOGRAPH_OPERATOR_PORT", help="Port of /healthz, /readyz and /metrics")
    ] = 8090,
    workers: Annotated[
        int,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_WORKERS",
            help="Resources of one BrokerCluster reconciled at the same time",
            min=1,
            max=256,
        ),
    ] = 16,
    refresh: Annotated[
        float,
        typer.Option(envvar="HELIOGRAPH_OPERATOR_REFRESH", help="Seconds between two listings of a broker", min=1),
    ] = 15.0,
    deletion_wait: Annotated[
        float,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_DELETION_WAIT",
            help="Seconds a deletion with deletionWhenUnreachable: Orphan waits for an unreachable broker",
            min=0,
        ),
    ] = 600.0,
    broker_image: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_BROKER_IMAGE", help="Default broker image")
    ] = BROKER_IMAGE,
    archives: Annotated[
        bool,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_ARCHIVES",
            help="Whether Topics may have archives where their BrokerCluster allows it; needs access to CronJobs",
        ),
    ] = False,
    archive_image: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_ARCHIVE_IMAGE", help="Default image of archive jobs")
    ] = ARCHIVE_IMAGE,
    archive_service_account: Annotated[
        str,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_ARCHIVE_SERVICE_ACCOUNT",
            help="Default ServiceAccount of archive jobs; empty: the one named default, without its token",
        ),
    ] = "",
    cluster_domain: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_CLUSTER_DOMAIN", help="DNS domain of the Kubernetes cluster")
    ] = "cluster.local",
    fixed_user: Annotated[
        bool,
        typer.Option(
            envvar="HELIOGRAPH_OPERATOR_FIXED_USER",
            help="Whether pods run as user 10001 of the images; otherwise as one that the Kubernetes cluster assigns",
        ),
    ] = True,
    lease: Annotated[
        str, typer.Option(envvar="HELIOGRAPH_OPERATOR_LEASE", help="Lease for leader election; empty: no election")
    ] = "",
    operator_namespace: Annotated[
        str,
        typer.Option(envvar="HELIOGRAPH_OPERATOR_NAMESPACE", help="Kubernetes namespace of the operator and its Lease"),
    ] = "default",
    log_level: Annotated[
        str | None, typer.Option(envvar="HELIOGRAPH_LOG_LEVEL", help="debug, info (default), warning or error")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(envvar="HELIOGRAPH_LOG_FORMAT", help="json or console (default on a terminal)")
    ] = None,
) -> None:
    """Reconcile resources until SIGTERM; without --namespace, those of all Kubernetes namespaces."""
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
        archives=archives,
        archive_image=archive_image,
        archive_service_account=archive_service_account,
        cluster_domain=cluster_domain,
        fixed_user=fixed_user,
        lease=lease,
        operator_namespace=operator_namespace,
        identity=socket.gethostname(),
    )
    sys.exit(asyncio.run(run(settings)))


def main() -> None:
    """Run the command line of this process."""
    app()


if __name__ == "__main__":
    main()
