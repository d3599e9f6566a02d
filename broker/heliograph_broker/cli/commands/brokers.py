"""``heliograph brokers …`` and ``heliograph clusters …``: list brokers and clusters, and check their health."""

from __future__ import annotations

from typing import Annotated

import typer
from heliograph_api.tables import new_table, readable_time
from heliograph_api.values.readable import readable_size

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    Output,
    OutputOption,
    call_broker,
    console,
    format_count,
    print_json,
    print_lines,
    request,
)

brokers_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List the brokers and check their health.

    \b
    Examples:
      heliograph brokers list
      heliograph brokers healthcheck
    """,
)
clusters_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List the clusters and their addresses.

    \b
    Examples:
      heliograph clusters list
      heliograph clusters get standalone
    """,
)


@brokers_app.command("list")
def list_brokers(
    cluster: Annotated[str, typer.Argument(metavar="[CLUSTER]", help="Only the brokers of this cluster.")] = "",
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """List the active brokers by the address of their HTTP port.

    \b
    Examples:
      heliograph brokers list
      heliograph brokers list standalone
    """
    path = f"/admin/v2/brokers/{cluster}" if cluster else "/admin/v2/brokers"
    print_lines(request(http_url, "GET", path), output)


@brokers_app.command("leader-broker")
def leader_broker(http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the leader of the brokers, as JSON.

    \b
    Examples:
      heliograph brokers leader-broker
    """
    print_json(request(http_url, "GET", "/admin/v2/brokers/leaderBroker"))


@brokers_app.command("healthcheck")
def healthcheck(http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print ok if the broker can store messages; exit with code 1 if not.

    \b
    Examples:
      heliograph brokers healthcheck
    """
    print(request(http_url, "GET", "/admin/v2/brokers/health"))


@brokers_app.command("version")
def version(http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the version of the broker ('heliograph version' prints that of this command).

    \b
    Examples:
      heliograph brokers version
    """
    print(call_broker(http_url, lambda client: client.broker_version()))


@brokers_app.command("quarantine")
def quarantine(output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """List the ledgers that are kept although no topic refers to them; nobody can read their messages.

    While the broker is stopped, 'heliograph store adopt' turns them into topics and 'heliograph store drop' deletes
    them.

    \b
    Examples:
      heliograph brokers quarantine
    """
    found = request(http_url, "GET", "/heliograph/v1/quarantine")
    if output is Output.JSON:
        print_json(found)
        return
    if not found:
        print("no ledger is in quarantine")
        return
    table = new_table(">LEDGER", ">ENTRIES", ">SIZE", "SINCE", "REASON")
    for each in found:
        table.add_row(
            str(each["ledgerId"]),
            format_count(each["lastEntryId"] - each["firstEntryId"] + 1),
            readable_size(each["bytes"]),
            readable_time(each["sinceTimestamp"]),
            each["reason"],
        )
    console().print(table)


@clusters_app.command("list")
def list_clusters(output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """List the clusters.

    \b
    Examples:
      heliograph clusters list
    """
    print_lines(request(http_url, "GET", "/admin/v2/clusters"), output)


@clusters_app.command("get")
def get_cluster(
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Name as printed by 'heliograph clusters list'.")],
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Print the addresses of a cluster, as JSON.

    \b
    Examples:
      heliograph clusters get standalone
    """
    print_json(request(http_url, "GET", f"/admin/v2/clusters/{cluster}"))
