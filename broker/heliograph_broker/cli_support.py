"""What the commands share: options for reaching a broker, one-line errors, and figures as people read them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from .resources.names import TopicName

if TYPE_CHECKING:
    from rich.console import Console

    from .admin_client import AdminClient

T = TypeVar("T")

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
START_HINT = "start one with 'heliograph standalone', or name another with"


class CliError(Exception):
    """An expected failure: one line that says what was wrong and what would be right; exit code 1."""


def usage_error(message: str) -> NoReturn:
    """End with exit code 2 for a command line that says something impossible."""
    raise typer.BadParameter(message)


def call_broker(http_url: str, work: Callable[[AdminClient], Awaitable[T]], *, topic: TopicName | None = None) -> T:
    """Run ``work`` with an admin client of the broker at ``http_url``; ``topic`` is what it is about, for errors.

    Raises :class:`CliError` if no broker answers, or the broker refuses.
    """
    # Here, because it takes longer to load than all the rest of the command line.
    from .admin_client import AdminClient, AdminRefused, AdminUnreachable

    if not http_url.startswith(("http://", "https://")):
        usage_error(f"--http-url {http_url!r} should start with http://, as in {DEFAULT_HTTP_URL}")

    async def run() -> T:
        async with AdminClient(http_url) as client:
            return await work(client)

    try:
        return asyncio.run(run())
    except AdminUnreachable as error:
        raise CliError(f"{error}; {START_HINT} --http-url") from error
    except AdminRefused as error:
        if topic is None:
            raise CliError(error.reason) from error
        hint = f"; 'heliograph topics list {topic.namespace_name}' shows what there is" if error.status == 404 else ""
        raise CliError(f"{topic}: {error.reason}{hint}") from error


def parse_topic(text: str) -> TopicName:
    """Return the topic's name. Raises ``InvalidName`` whose message says what a name looks like."""
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


def console() -> Console:
    """Return where tables go: as wide as they need to be unless a terminal limits them."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=240)


def format_count(number: int) -> str:
    """Return a number with thousands apart, as in ``336,776``."""
    return f"{number:,}"
