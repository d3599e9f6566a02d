"""``heliograph auth``: who may do what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    Output,
    OutputOption,
    TopicArgument,
    print_json,
    request,
    topic_target,
)

auth_app = typer.Typer(no_args_is_help=True, help="Ask who may do what.")


class Action(StrEnum):
    """The action asked about."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


@auth_app.callback()
def auth() -> None:
    """Ask who may do what, and by which rule."""


@auth_app.command("can-i")
def can_i(
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="produce, consume or admin.")],
    topic: TopicArgument,
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="The role; default: your own.")] = "",
    subscription: Annotated[
        str, typer.Option("-s", "--subscription", metavar="NAME", help="The subscription to consume with.")
    ] = "",
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Tell whether a role may do something on a topic, and the rule that decides. Exit code 0 is yes, 1 is no.

    Everybody may ask about their own role, administrators of the tenant and superusers about any.

    \b
    Examples:
      heliograph auth can-i produce orders --role billing
      heliograph auth can-i consume shop/payments/orders --role billing -s billing-1
      heliograph auth can-i admin shop/payments/orders -o json
    """
    target = topic_target(topic)
    asked = {"action": action.value, "topic": target.name, "role": role, "subscription": subscription}
    params = {name: value for name, value in asked.items() if value}
    answer = request(http_url, "GET", "/heliograph/v1/auth/can-i", target=target, params=params)
    if output is Output.JSON:
        print_json(answer)
    else:
        print(f"{'yes' if answer['allowed'] else 'no'}: {answer['rule']}")
    if not answer["allowed"]:
        raise typer.Exit(1)
