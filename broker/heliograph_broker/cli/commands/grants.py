"""Grants by the command line: the verbs of ``pulsar-admin`` on namespaces, topics and the names of subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from heliograph_api.admin.admin_paths import encoded
from heliograph_api.tables import new_table

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    NamespaceArgument,
    Output,
    OutputOption,
    SubscriptionOption,
    Target,
    TopicArgument,
    console,
    namespace_target,
    print_json,
    request,
    topic_target,
    usage_error,
)
from heliograph_broker.cli.base.values import comma_separated


def _role(text: str) -> str:
    return text or usage_error("--role '' names nothing; valid: billing")


RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="The role.", callback=_role)]
ActionsOption = Annotated[
    str, typer.Option("--actions", metavar="ACTIONS", help="produce, consume or both, separated by a comma.")
]
RolesOption = Annotated[str, typer.Option("--roles", "-rs", metavar="ROLES", help="The roles, separated by commas.")]
_ROLES = "ROLE", "ACTIONS"
_SUBSCRIPTIONS = "SUBSCRIPTION", "ROLES"


def add_namespace_grant_commands(app: typer.Typer) -> None:
    """Register these commands with ``heliograph namespaces``."""
    app.command("permissions")(namespace_permissions)
    app.command("grant-permission")(grant_namespace)
    app.command("revoke-permission")(revoke_namespace)
    app.command("subscription-permission")(subscription_permissions)
    app.command("grant-subscription-permission")(grant_subscription)
    app.command("revoke-subscription-permission")(revoke_subscription)


def add_topic_grant_commands(app: typer.Typer) -> None:
    """Register these commands with ``heliograph topics``."""
    app.command("permissions")(topic_permissions)
    app.command("grant-permission")(grant_topic)
    app.command("revoke-permission")(revoke_topic)


def namespace_permissions(
    namespace: NamespaceArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Show what roles may do on a namespace and all its topics.

    \b
    Examples:
      heliograph namespaces permissions acme/shop
    """
    _show(namespace_target(namespace), "permissions", _ROLES, output, http_url)


def grant_namespace(
    namespace: NamespaceArgument, role: RoleOption, actions: ActionsOption, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Set what a role may do on a namespace and all its topics; this replaces what was granted to it there.

    \b
    Examples:
      heliograph namespaces grant-permission acme/shop --role billing --actions produce,consume
    """
    _grant(namespace_target(namespace), role, actions, http_url)


def revoke_namespace(namespace: NamespaceArgument, role: RoleOption, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Take away what a role may do on a namespace; grants on its topics stay.

    \b
    Examples:
      heliograph namespaces revoke-permission acme/shop --role billing
    """
    _revoke(namespace_target(namespace), role, http_url)


def subscription_permissions(
    namespace: NamespaceArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Show the subscriptions of a namespace that only some roles may use.

    \b
    Examples:
      heliograph namespaces subscription-permission acme/shop
    """
    _show(namespace_target(namespace), "permissions/subscription", _SUBSCRIPTIONS, output, http_url)


def grant_subscription(
    namespace: NamespaceArgument,
    subscription: SubscriptionOption,
    roles: RolesOption,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Set the roles that alone may use subscriptions of a name; they need the right to consume, too.

    \b
    Examples:
      heliograph namespaces grant-subscription-permission acme/shop -s invoices --roles billing,audit
    """
    target = namespace_target(namespace)
    path = f"{target.path}/permissions/subscription/{encoded(subscription)}"
    request(http_url, "POST", path, body=_several("--roles", roles, "billing,audit"), target=target)
    print(f"namespace/{target.name} subscription {subscription} granted to {roles}")


def revoke_subscription(
    namespace: NamespaceArgument,
    subscription: SubscriptionOption,
    role: RoleOption,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Remove a role from those that may use subscriptions of a name; if none is left, all that may consume may.

    \b
    Examples:
      heliograph namespaces revoke-subscription-permission acme/shop -s invoices --role audit
    """
    target = namespace_target(namespace)
    path = f"{target.path}/permissions/{encoded(subscription)}/{encoded(role)}"
    request(http_url, "DELETE", path, target=target)
    print(f"namespace/{target.name} subscription {subscription} revoked from {role}")


def topic_permissions(
    topic: TopicArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Show what roles may do on a topic, by grants on it or on its namespace.

    \b
    Examples:
      heliograph topics permissions orders
      heliograph topics permissions 'acme/shop/orders-*'
    """
    _show(topic_target(topic), "permissions", _ROLES, output, http_url)


def grant_topic(
    topic: TopicArgument, role: RoleOption, actions: ActionsOption, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Set what a role may do on a topic; a name that ends with * is for all topics that begin so.

    \b
    Examples:
      heliograph topics grant-permission orders --role billing --actions consume
      heliograph topics grant-permission 'acme/shop/orders-*' --role billing --actions produce,consume
    """
    _grant(topic_target(topic), role, actions, http_url)


def revoke_topic(topic: TopicArgument, role: RoleOption, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Take away what was granted to a role on a topic; grants on its namespace stay.

    \b
    Examples:
      heliograph topics revoke-permission orders --role billing
      heliograph topics revoke-permission 'acme/shop/orders-*' --role billing
    """
    _revoke(topic_target(topic), role, http_url)


def _grant(target: Target, role: str, actions: str, http_url: str) -> None:
    given = _several("--actions", actions, "produce,consume")
    request(http_url, "POST", f"{target.path}/permissions/{encoded(role)}", body=given, target=target)
    print(f"{target.kind}/{target.name} {','.join(given)} granted to {role}")


def _revoke(target: Target, role: str, http_url: str) -> None:
    request(http_url, "DELETE", f"{target.path}/permissions/{encoded(role)}", target=target)
    print(f"{target.kind}/{target.name} revoked from {role}")


def _several(option: str, text: str, example: str) -> list[str]:
    return comma_separated(text) or usage_error(f"{option} '{text}' names nothing; valid: {example}")


def _show(target: Target, path: str, columns: Sequence[str], output: Output, http_url: str) -> None:
    granted: Mapping[str, Sequence[str]] = request(http_url, "GET", f"{target.path}/{path}", target=target)
    if output is Output.JSON:
        print_json(granted)
        return
    if not granted:
        print(f"nothing is granted on {target.kind} {target.name}")
        return
    table = new_table(*columns)
    for name in sorted(granted):
        table.add_row(name, ", ".join(granted[name]))
    console().print(table)
