"""``heliograph tenants …``: the owners of namespaces, through the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    Force,
    HttpUrl,
    Output,
    OutputOption,
    call_broker,
    print_json,
    print_lines,
    request,
    tenant_target,
)
from heliograph_broker.cli.base.values import comma_separated

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

tenants_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, create and delete tenants, the owners of namespaces.

    \b
    Examples:
      heliograph tenants list
      heliograph tenants create acme
    """,
)

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Letters, digits and - = : . _")]
Roles = Annotated[
    str,
    typer.Option(
        "--admin-roles", "-r", metavar="ROLES", help="Roles that may administer the tenant, separated by commas."
    ),
]
Clusters = Annotated[
    str,
    typer.Option(
        "--allowed-clusters",
        "-c",
        metavar="CLUSTERS",
        help="Clusters the tenant may use, separated by commas; default: all.",
    ),
]


@tenants_app.command("list")
def list_tenants(output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """List the tenants.

    \b
    Examples:
      heliograph tenants list
      heliograph tenants list -o json
    """
    print_lines(request(http_url, "GET", "/admin/v2/tenants"), output)


@tenants_app.command("get")
def get_tenant(tenant: TenantArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print a tenant's roles and clusters, as JSON.

    \b
    Examples:
      heliograph tenants get acme
    """
    target = tenant_target(tenant)
    print_json(request(http_url, "GET", target.path, target=target))


@tenants_app.command("create")
def create_tenant(
    tenant: TenantArgument, roles: Roles = "", clusters: Clusters = "", http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Create a tenant.

    \b
    Examples:
      heliograph tenants create acme
      heliograph tenants create acme --admin-roles ops,dev --allowed-clusters standalone
    """
    _put("PUT", tenant, roles, clusters, http_url)
    print(f"tenant/{tenant} created")


@tenants_app.command("update")
def update_tenant(
    tenant: TenantArgument, roles: Roles = "", clusters: Clusters = "", http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Set a tenant's roles and clusters. Without the option, roles become none and clusters become all.

    \b
    Examples:
      heliograph tenants update acme --admin-roles ops
    """
    _put("POST", tenant, roles, clusters, http_url)
    print(f"tenant/{tenant} updated")


def _put(method: str, tenant: str, roles: str, clusters: str, http_url: str) -> None:
    target = tenant_target(tenant)

    async def work(client: AdminClient) -> None:
        allowed = comma_separated(clusters) or await client.request("GET", "/admin/v2/clusters")
        body = {"adminRoles": comma_separated(roles), "allowedClusters": allowed}
        await client.request(method, target.path, body=body)

    call_broker(http_url, work, target=target)


@tenants_app.command("delete")
def delete_tenant(tenant: TenantArgument, force: Force = False, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Delete a tenant without namespaces; with --force, delete its namespaces and their topics, too.

    \b
    Examples:
      heliograph tenants delete acme
      heliograph tenants delete acme --force
    """
    target = tenant_target(tenant)
    params = {"force": "true"} if force else None
    request(http_url, "DELETE", target.path, params=params, target=target)
    print(f"tenant/{tenant} deleted")
