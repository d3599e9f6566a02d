"""``heliograph namespaces …``: namespaces, their policies, and operations on all their topics at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from heliograph_api.admin.admin_paths import encoded

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    CliError,
    Force,
    HttpUrl,
    NamespaceArgument,
    Output,
    OutputOption,
    namespace_target,
    print_json,
    print_lines,
    request,
    tenant_target,
)
from heliograph_broker.cli.base.values import comma_separated
from heliograph_broker.cli.policies.policy_commands import Level, add_policy_commands
from heliograph_broker.cli.policies.policy_levels import NAMESPACE_POLICIES

from .grants import add_namespace_grant_commands

namespaces_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Manage namespaces, their policies, and all their topics at once.

    \b
    Examples:
      heliograph namespaces create acme/shop
      heliograph namespaces set-retention acme/shop --size 10G --time 3h
      heliograph namespaces set-message-ttl acme/shop --messageTTL 120
      heliograph namespaces policies acme/shop

    get-NAME prints what set-NAME sets, and remove-NAME removes it. Sizes are 10G, 512M or a number of bytes; times
    are 3h, 90s, 7d or a number of seconds; -1 means no limit.
    """,
)


@namespaces_app.command("list")
def list_namespaces(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Tenant that owns the namespaces.")],
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """List the namespaces of a tenant.

    \b
    Examples:
      heliograph namespaces list public
    """
    target = tenant_target(tenant)
    path = f"/admin/v2/namespaces/{target.name}"
    print_lines(request(http_url, "GET", path, target=target), output)


@namespaces_app.command("topics")
def topics(
    namespace: NamespaceArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """List the topics of a namespace, with each partition as a topic of its own.

    \b
    Examples:
      heliograph namespaces topics public/default
    """
    target = namespace_target(namespace)
    params = {"mode": "ALL"}
    print_lines(request(http_url, "GET", f"{target.path}/topics", params=params, target=target), output)


@namespaces_app.command("policies")
def policies(namespace: NamespaceArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the settings of a namespace, as JSON.

    \b
    Examples:
      heliograph namespaces policies public/default
    """
    target = namespace_target(namespace)
    print_json(request(http_url, "GET", target.path, target=target))


@namespaces_app.command("create")
def create(
    namespace: NamespaceArgument,
    bundles: Annotated[
        int, typer.Option("--bundles", "-b", min=0, max=4096, help="Number of bundles; 0: the broker's default.")
    ] = 0,
    clusters: Annotated[
        str, typer.Option("--clusters", "-c", metavar="CLUSTERS", help="Allowed clusters, separated by commas.")
    ] = "",
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Create a namespace of an existing tenant.

    \b
    Examples:
      heliograph namespaces create acme/shop
    """
    target = namespace_target(namespace)
    body: dict[str, Any] = {}
    if bundles:
        body["bundles"] = {"numBundles": bundles}
    if clusters:
        body["replication_clusters"] = comma_separated(clusters)
    request(http_url, "PUT", target.path, body=body, target=target)
    print(f"namespace/{target.name} created")


@namespaces_app.command("delete")
def delete(namespace: NamespaceArgument, force: Force = False, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Delete a namespace without topics; with --force, delete its topics and their messages, too.

    \b
    Examples:
      heliograph namespaces delete acme/shop
      heliograph namespaces delete acme/shop --force
    """
    target = namespace_target(namespace)
    params = {"force": "true"} if force else None
    request(http_url, "DELETE", target.path, params=params, target=target)
    print(f"namespace/{target.name} deleted")


@namespaces_app.command("clear-backlog")
def clear_backlog(
    namespace: NamespaceArgument,
    subscription: Annotated[
        str, typer.Option("--sub", "-s", metavar="NAME", help="Clear only the backlogs of this subscription.")
    ] = "",
    force: Annotated[bool, typer.Option("-f", "--force", "-force", help="Do not ask for confirmation.")] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Acknowledge all messages in the backlogs of a namespace's topics. Asks for confirmation unless --force is given.

    \b
    Examples:
      heliograph namespaces clear-backlog acme/shop --force
      heliograph namespaces clear-backlog acme/shop --sub billing
    """
    target = namespace_target(namespace)
    whose = f"of subscription {subscription} " if subscription else ""
    if not force and not typer.confirm(f"Clear the backlog {whose}of all topics of {target.name}?"):
        raise CliError("nothing was cleared")
    path = f"{target.path}/clearBacklog"
    if subscription:
        path += f"/{encoded(subscription)}"
    request(http_url, "POST", path, target=target)
    print(f"namespace/{target.name} backlog cleared")


@namespaces_app.command("unsubscribe")
def unsubscribe(
    namespace: NamespaceArgument,
    subscription: Annotated[str, typer.Option("--sub", "-s", metavar="NAME", help="The subscription to delete.")],
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Delete a subscription from all topics of a namespace.

    \b
    Examples:
      heliograph namespaces unsubscribe acme/shop --sub billing
    """
    target = namespace_target(namespace)
    path = f"{target.path}/unsubscribe/{encoded(subscription)}"
    request(http_url, "POST", path, target=target)
    print(f"namespace/{target.name} subscription {subscription} deleted")


@namespaces_app.command("unload")
def unload(namespace: NamespaceArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Close and reopen the namespace's topics; clients reconnect by themselves.

    \b
    Examples:
      heliograph namespaces unload acme/shop
    """
    target = namespace_target(namespace)
    request(http_url, "PUT", f"{target.path}/unload", target=target)
    print(f"namespace/{target.name} unloaded")


add_namespace_grant_commands(namespaces_app)
add_policy_commands(
    namespaces_app,
    Level("namespaces", "NAMESPACE", "Namespace, as 'tenant/namespace'.", "acme/shop", namespace_target, applied=False),
    NAMESPACE_POLICIES,
)
