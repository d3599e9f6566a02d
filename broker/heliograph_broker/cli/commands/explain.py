"""``heliograph explain``: why a topic, subscription or consumer gets nothing now."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from heliograph_api.tables import readable_age, readable_time

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
from heliograph_broker.clock import SystemClock


def explain(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("-s", "--subscription", metavar="NAME", help="Only this subscription.")
    ] = "",
    consumer: Annotated[str, typer.Option("--consumer", metavar="NAME", help="Only the consumers of this name.")] = "",
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Say why a topic's subscriptions deliver nothing now, since when, and what would end it.

    Each subscription and each consumer has exactly one reason, such as noConsumer, noPermits or keyHeld. The broker
    only looks: nothing is delivered, acknowledged or changed. The last line of a topic is about its producers.

    \b
    Examples:
      heliograph explain orders
      heliograph explain orders -s billing
      heliograph explain orders -s billing --consumer worker-1
      heliograph explain orders -s billing -o json
    """
    target = topic_target(topic)
    path = target.path.replace("/admin/v2/", "/heliograph/v1/", 1)
    asked = {"subscription": subscription, "consumer": consumer}
    params = {name: value for name, value in asked.items() if value}
    answer = request(http_url, "GET", f"{path}/explain", target=target, params=params)
    if output is Output.JSON:
        print_json(answer)
        return
    for each in answer:
        print(each["topic"])
        for name, found in sorted(each["subscriptions"].items()):
            _print_subscription(name, found)
        if not each["subscriptions"]:
            print("  it has no such subscription" if params else "  it has no subscriptions")
        publishing = each["publishing"]
        print(f"  producers: {_reason(publishing)}")
        _print_details("    ", publishing)


def _print_subscription(name: str, found: dict[str, Any]) -> None:
    kind = f", {found['type']}" if "type" in found else ""
    counts = f"{found['msgBacklog']} in the backlog, {found['unackedMessages']} of these at consumers"
    print(f"  subscription {name}{kind} ({counts}): {_reason(found)}")
    _print_details("    ", found)
    for each in found["consumers"]:
        counts = f"{each['availablePermits']} permits, {each['unackedMessages']} unacknowledged"
        print(f"    consumer {each['name']} ({counts}): {_reason(each)}")
        if each["text"] != found["text"]:
            _print_details("      ", each)


def _reason(found: dict[str, Any]) -> str:
    """Return the name of a reason and since when it holds."""
    since_ms = found["sinceTimestamp"]
    if found["reason"] == "none" or not since_ms:
        return str(found["reason"])
    age = readable_age(max(0, SystemClock().now_ms() - since_ms))
    return f"{found['reason']} since {readable_time(since_ms)} UTC ({age})"


def _print_details(indent: str, found: dict[str, Any]) -> None:
    print(f"{indent}{found['text']}")
    if "untilTimestamp" in found:
        print(f"{indent}until {readable_time(found['untilTimestamp'])} UTC")
    if found["ends"]:
        print(f"{indent}it ends when {found['ends']}")
