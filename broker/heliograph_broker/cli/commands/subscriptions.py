"""``heliograph topics …`` for subscriptions: create, delete and reset them; skip or expire messages of theirs."""

from __future__ import annotations

from typing import Annotated

import typer
from heliograph_api.admin.admin_paths import encoded_subscription

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    Force,
    HttpUrl,
    Output,
    OutputOption,
    SubscriptionOption,
    TopicArgument,
    parse_properties,
    print_lines,
    request,
    topic_target,
    usage_error,
)
from heliograph_broker.cli.base.values import message_id, time_milliseconds, time_seconds
from heliograph_broker.clock import SystemClock

from .find_messages import find_messages
from .peek import peek_messages

ExpireTime = typer.Option(
    "--expireTime", "-t", metavar="TIME", help="Age after which messages expire: 3600 (s), 1h, 7d."
)
_EXCLUDE = typer.Option("--exclude-reset-position", "-e", help="Exclude the message at the position itself.")


def add_subscription_commands(app: typer.Typer) -> None:
    """Register these commands with ``heliograph topics``."""
    app.command("subscriptions")(subscriptions)
    app.command("create-subscription")(create_subscription)
    app.command("unsubscribe")(unsubscribe)
    app.command("skip")(skip)
    app.command("clear-backlog")(clear_backlog)
    app.command("skip-all", hidden=True)(clear_backlog)
    app.command("expire-messages")(expire_messages)
    app.command("expire-messages-all-subscriptions")(expire_messages_all)
    app.command("peek-messages")(peek_messages)
    app.command("find-messages")(find_messages)
    app.command("reset-cursor")(reset_cursor)


def subscriptions(
    topic: TopicArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """List the subscriptions of a topic.

    \b
    Examples:
      heliograph topics subscriptions orders
    """
    target = topic_target(topic)
    print_lines(request(http_url, "GET", f"{target.path}/subscriptions", target=target), output)


def create_subscription(
    topic: TopicArgument,
    subscription: SubscriptionOption,
    position: Annotated[
        str, typer.Option("--messageId", "-m", metavar="ID", help="latest, earliest or LEDGER:ENTRY.")
    ] = "latest",
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-p", metavar="NAME=VALUE", help="Property of the subscription; may be repeated."),
    ] = None,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Create a durable subscription: from now on messages are kept for it.

    \b
    Examples:
      heliograph topics create-subscription orders -s billing
      heliograph topics create-subscription orders -s audit --messageId earliest
    """
    target = topic_target(topic)
    body = message_id("--messageId", position)
    if properties:
        body["properties"] = parse_properties(properties)
    request(
        http_url, "PUT", f"{target.path}/subscription/{encoded_subscription(subscription)}", body=body, target=target
    )
    print(f"topic/{target.name} subscription {subscription} created")


def unsubscribe(
    topic: TopicArgument, subscription: SubscriptionOption, force: Force = False, http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Delete a subscription without consumers; with --force, disconnect its consumers first.

    \b
    Examples:
      heliograph topics unsubscribe orders -s billing
    """
    target = topic_target(topic)
    params = {"force": "true"} if force else None
    request(
        http_url,
        "DELETE",
        f"{target.path}/subscription/{encoded_subscription(subscription)}",
        params=params,
        target=target,
    )
    print(f"topic/{target.name} subscription {subscription} deleted")


def skip(
    topic: TopicArgument,
    subscription: SubscriptionOption,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of messages.")],
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Acknowledge the oldest messages of a subscription's backlog.

    \b
    Examples:
      heliograph topics skip orders -s billing -n 10
    """
    target = topic_target(topic)
    request(
        http_url, "POST", f"{target.path}/subscription/{encoded_subscription(subscription)}/skip/{count}", target=target
    )
    print(f"topic/{target.name} subscription {subscription} skipped {count}")


def clear_backlog(topic: TopicArgument, subscription: SubscriptionOption, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Acknowledge all of a subscription's backlog.

    \b
    Examples:
      heliograph topics clear-backlog orders -s billing
    """
    target = topic_target(topic)
    request(
        http_url, "POST", f"{target.path}/subscription/{encoded_subscription(subscription)}/skip_all", target=target
    )
    print(f"topic/{target.name} subscription {subscription} backlog cleared")


def expire_messages(
    topic: TopicArgument,
    subscription: SubscriptionOption,
    expire_time: Annotated[str, ExpireTime] = "",
    position: Annotated[
        str, typer.Option("--position", "-p", metavar="LEDGER:ENTRY", help="Last message to expire.")
    ] = "",
    exclude: Annotated[bool, _EXCLUDE] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Expire a subscription's messages by age, or up to a message.

    \b
    Examples:
      heliograph topics expire-messages orders -s billing --expireTime 1h
      heliograph topics expire-messages orders -s billing --position 12:40
    """
    target = topic_target(topic)
    path = f"{target.path}/subscription/{encoded_subscription(subscription)}/expireMessages"
    if bool(expire_time) == bool(position):
        usage_error("give either --expireTime TIME or --position LEDGER:ENTRY")
    if expire_time:
        request(http_url, "POST", f"{path}/{_age(expire_time)}", target=target)
    else:
        body = message_id("--position", position) | {"isExcluded": exclude}
        request(http_url, "POST", path, body=body, target=target)
    print(f"topic/{target.name} subscription {subscription} messages expired")


def expire_messages_all(
    topic: TopicArgument, expire_time: Annotated[str, ExpireTime], http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Expire messages by age for all subscriptions of a topic.

    \b
    Examples:
      heliograph topics expire-messages-all-subscriptions orders --expireTime 7d
    """
    target = topic_target(topic)
    request(http_url, "POST", f"{target.path}/all_subscription/expireMessages/{_age(expire_time)}", target=target)
    print(f"topic/{target.name} messages expired")


def _age(text: str) -> int:
    seconds = time_seconds("--expireTime", text)
    if seconds < 1:
        usage_error(f"--expireTime '{text}' is not an age; valid: 1 (s) or more, 90s, 1h, 7d")
    return seconds


def reset_cursor(
    topic: TopicArgument,
    subscription: SubscriptionOption,
    time: Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Time to go back: 3600 (s), 1h, 7d.")] = "",
    position: Annotated[
        str, typer.Option("--messageId", "-m", metavar="ID", help="latest, earliest or LEDGER:ENTRY.")
    ] = "",
    exclude: Annotated[bool, _EXCLUDE] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Move a subscription back or forward, as far as messages are kept; its consumers reconnect.

    \b
    Examples:
      heliograph topics reset-cursor orders -s billing --time 1h
      heliograph topics reset-cursor orders -s billing --messageId earliest
    """
    target = topic_target(topic)
    path = f"{target.path}/subscription/{encoded_subscription(subscription)}/resetcursor"
    if bool(time) == bool(position):
        usage_error("give either --time TIME or --messageId ID")
    if time:
        back_ms = time_milliseconds("--time", time)
        if back_ms < 0:
            usage_error(f"--time '{time}' is not a time to go back; valid: 0, 90s, 1h, 7d")
        request(http_url, "POST", f"{path}/{SystemClock().now_ms() - back_ms}", target=target)
    else:
        body = message_id("--messageId", position) | {"isExcluded": exclude}
        request(http_url, "POST", path, body=body, target=target)
    print(f"topic/{target.name} subscription {subscription} reset")
