"""Shared by all commands: options to reach a broker, one-line errors, and numbers for people to read."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

import typer
from heliograph_api.admin.admin_paths import namespace_path, subscription_path, tenant_path, topic_path
from heliograph_api.values.names import NamespaceName, TopicName, check_part, check_subscription

from .access import credentials, unusable_files
from .broker_failures import refused_credentials, unreachable

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient
    from rich.console import Console

T = TypeVar("T")


class Output(StrEnum):
    """The form of a result: for people or for programs."""

    TEXT = "text"
    JSON = "json"


HttpUrl = Annotated[
    str,
    typer.Option(
        "--http-url", envvar="HELIOGRAPH_HTTP_URL", metavar="URL", help="The broker's HTTP port (admin REST API)."
    ),
]
ServiceUrl = Annotated[
    str,
    typer.Option(
        "--service-url", envvar="HELIOGRAPH_SERVICE_URL", metavar="URL", help="The broker's binary port (clients)."
    ),
]
DEFAULT_HTTP_URL = "http://127.0.0.1:8080"
DEFAULT_SERVICE_URL = "pulsar://127.0.0.1:6650"

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic: 'orders', 'tenant/ns/orders' or the full name.")
]
SubscriptionOption = Annotated[str, typer.Option("--subscription", "-s", metavar="NAME", help="The subscription.")]
NamespaceArgument = Annotated[str, typer.Argument(metavar="NAMESPACE", help="Namespace, as 'tenant/namespace'.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", metavar="FORMAT", help="text, or json for programs.")]
MessageOutputOption = Annotated[
    Output,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT",
        help="text, or json: an object a line for each message, with its id, key, properties and times.",
    ),
]
Force = Annotated[bool, typer.Option("-f", "--force", help="Proceed even if it is in use.")]


class CliError(Exception):
    """An expected failure: one line with the problem and the valid values; exit code 1."""


class Target(NamedTuple):
    """The object of a command: its kind and name for people, its path in the admin API, and the command to list it."""

    kind: str
    name: str
    path: str
    #: The command that lists what there is, for whom it was not found.
    list_command: str


def tenant_target(text: str) -> Target:
    """Return the target for a tenant's name. Raises ``InvalidName``."""
    check_part("tenant", text)
    return Target("tenant", text, tenant_path(text), "heliograph tenants list")


def namespace_target(text: str) -> Target:
    """Return the namespace ``text`` names, as ``tenant/namespace``; ends with a usage error if it is not one."""
    if text.count("/") != 1:
        usage_error(f"NAMESPACE {text!r} should be tenant/namespace, as in public/default")
    name = NamespaceName.parse(text)
    return Target("namespace", str(name), namespace_path(name), f"heliograph namespaces list {name.tenant}")


def topic_target(text: str) -> Target:
    """Return the topic ``text`` names, short or in full. Raises ``InvalidName``."""
    return target_of(TopicName.parse(text))


def subscription_target(topic: str, subscription: str) -> Target:
    """Return a subscription of the topic ``topic`` names, for its own policies. Raises ``InvalidName``."""
    name = TopicName.parse(topic)
    check_subscription(subscription)
    path = subscription_path(name, subscription)
    return Target("subscription", f"{name} {subscription}", path, f"heliograph topics list {name.namespace_name}")


def target_of(topic: TopicName) -> Target:
    return Target("topic", str(topic), topic_path(topic), f"heliograph topics list {topic.namespace_name}")


def usage_error(message: str) -> NoReturn:
    """End with exit code 2 for an invalid command line."""
    raise typer.BadParameter(message)


def list_whole_sentences(app: typer.Typer) -> None:
    """Show the first sentence of each command's help in full in the list of commands, on several lines if needed."""
    for command in app.registered_commands:
        text = command.callback.__doc__ if command.callback is not None else None
        if text:
            command.short_help = text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def call_broker(http_url: str, work: Callable[[AdminClient], Awaitable[T]], *, target: Target | None = None) -> T:
    """Run ``work`` with an admin client of the broker at ``http_url``; ``target`` is its object, for errors.

    The client has the credentials of the command that runs. Raises :class:`CliError` if no broker answers, or the
    broker refuses.
    """
    # Here, because it takes longer to load than all the rest of the command line.
    from heliograph_api.admin.admin_client import AdminRefused, AdminUnreachable

    if not http_url.startswith(("http://", "https://")):
        usage_error(f"--http-url {http_url!r} should start with http:// or https://, as in {DEFAULT_HTTP_URL}")

    async def run() -> T:
        async with admin_client(http_url) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except AdminUnreachable as error:
        raise CliError(unreachable(str(error), error.tls, http_url, "--http-url", credentials())) from error
    except AdminRefused as error:
        if error.status == 401:
            raise CliError(refused_credentials(http_url, error.reason, credentials())) from error
        if target is None:
            raise CliError(error.reason) from error
        hint = f"; '{target.list_command}' shows what there is" if error.status == 404 else ""
        raise CliError(f"{target.name}: {error.reason}{hint}") from error


def admin_client(http_url: str) -> AdminClient:
    """Return an admin client with the credentials of the command that runs.

    Raises :class:`AccessError` if they cannot be used.
    """
    from heliograph_api.admin.admin_client import AdminClient
    from heliograph_api.admin.client_tls import ClientCertificate

    shown = credentials()
    try:
        return AdminClient(
            http_url,
            token=shown.token.read if shown.token is not None else "",
            trusted=shown.trusted(),
            certificate=shown.certificate and ClientCertificate(*shown.certificate),
        )
    except ValueError as error:
        raise unusable_files(error, shown) from error


def request(http_url: str, method: str, path: str, *, target: Target | None = None, **options: Any) -> Any:
    """Return the broker's answer to one request; ``options`` and answer are as :meth:`AdminClient.request` says.

    Raises as :func:`call_broker`.
    """
    return call_broker(http_url, lambda client: client.request(method, path, **options), target=target)


def parse_topic(text: str) -> TopicName:
    """Return the topic's name. Raises ``InvalidName`` whose message shows a valid name."""
    return TopicName.parse(text)


def parse_properties(pairs: list[str]) -> dict[str, str]:
    """Return ``["k=v", …]`` as a mapping; ends with a usage error for a pair without ``=``."""
    properties: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            usage_error(f"--property {pair!r} should be name=value")
        properties[key] = value
    return properties


def print_json(value: Any) -> None:
    """Print ``value`` for programs: two-space JSON, keys in the broker's order."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_lines(values: list[str], output: Output) -> None:
    """Print a list: one value a line, or as JSON."""
    if output is Output.JSON:
        print_json(values)
        return
    for value in values:
        print(value)


def console() -> Console:
    """Return where tables go: as wide as they need to be unless a terminal limits them."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=240)


def format_count(number: int) -> str:
    """Return a number with thousands apart, as in ``336,776``."""
    return f"{number:,}"
