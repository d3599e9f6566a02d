"""``heliograph topics find-messages``: search the unacknowledged messages of a subscription without delivering them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer
from heliograph_api.admin.admin_paths import encoded_subscription
from heliograph_api.tables import new_table, readable_time

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    Output,
    OutputOption,
    TopicArgument,
    call_broker,
    console,
    parse_properties,
    parse_topic,
    print_json,
    target_of,
    usage_error,
)

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

_MOST = 1000
#: As the broker answers when it stops before the first message.
_NOT_SEARCHED: dict[str, Any] = {
    "messages": [],
    "examinedEntries": 0,
    "unreadableEntries": 0,
    "stopped": "limit",
    "next": "0:0",
}


def find_messages(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", metavar="NAME", help="Subscription whose messages are searched.")
    ],
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Only messages with this property; may be repeated."),
    ] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only messages at least this old: 90s, 1h, 7d.")
    ] = "",
    newer_than: Annotated[
        str, typer.Option("--newer-than", metavar="TIME", help="Only messages younger than this.")
    ] = "",
    message_id: Annotated[
        str, typer.Option("--message-id", metavar="ID", help="Only this one: LEDGER:ENTRY or LEDGER:ENTRY:INDEX.")
    ] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=_MOST, help="Number of messages to find.")] = 100,
    after: Annotated[
        str, typer.Option("--after", metavar="ID", help="Continue a search after the id at which it stopped.")
    ] = "",
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Find messages that a subscription has not acknowledged, and print the state of each.

    A message is sent (to which consumer, and since when), notSent, toRedeliver, delayed, keyHeld (by which consumer) or
    expired. Nothing is delivered or acknowledged. Messages of a batch that are acknowledged by index are left out; the
    broker sees only the metadata of an encrypted batch as a whole. For a partitioned topic, every partition is
    searched; name one of them to use --after.

    \b
    Examples:
      heliograph topics find-messages orders -s billing --key customer-1
      heliograph topics find-messages orders -s billing --property source=web --older-than 1h
      heliograph topics find-messages orders -s billing --message-id 12:40 -o json
      heliograph topics find-messages orders-partition-0 -s billing -n 1000 --after 12:1040
    """
    name = parse_topic(topic)
    target = target_of(name)
    asked = {"key": key, "olderThan": older_than, "newerThan": newer_than, "id": message_id, "after": after}
    params = [(option, value) for option, value in asked.items() if value not in (None, "")]
    # Read here, so that a pair without = is an error of the command line.
    params += [("property", f"{each}={value}") for each, value in parse_properties(properties or []).items()]

    async def work(client: AdminClient) -> list[dict[str, Any]]:
        partitions = 0 if name.partition >= 0 else await client.partitions(name)
        if partitions and after:
            usage_error(f"--after needs one partition, as in {topic}-partition-0")
        answers: list[dict[str, Any]] = []
        left = count
        for each in [name.with_partition(index) for index in range(partitions)] or [name]:
            base = target_of(each).path.replace("/admin/v2/", "/heliograph/v1/", 1)
            path = f"{base}/subscription/{encoded_subscription(subscription)}/messages"
            answer = _NOT_SEARCHED
            if left > 0:
                query = urlencode([*params, ("limit", str(left))])
                answer = await client.request("GET", f"{path}?{query}")
            answers.append({"topic": str(each), **answer})
            left -= len(answer["messages"])
        return answers

    answers = call_broker(http_url, work, target=target)
    if output is Output.JSON:
        print_json(answers)
        return
    for answer in answers:
        if len(answers) > 1:
            print(answer["topic"])
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    from rich.markup import escape

    if answer["messages"]:
        table = new_table("ID", "STATE", "CONSUMER", "SINCE", ">REDELIVERED", "RECEIVED", "KEY", "PROPERTIES")
        for each in answer["messages"]:
            since_ms = each.get("sentTimestamp") or each.get("deliverAtTimestamp")
            table.add_row(
                each["id"] if each["messages"] == 1 else f"{each['id']} ({each['messages']} messages)",
                each["state"] if each["state"] != "delayed" else "delayed until",
                escape(each.get("consumer", "-")),
                readable_time(since_ms) if since_ms else "-",
                str(each["redeliveryCount"]),
                readable_time(each["receiveTimestamp"]),
                escape(each["key"]) if each["key"] is not None else "-",
                escape(", ".join(f"{name}={value}" for name, value in each["properties"].items())) or "-",
            )
        console().print(table)
    elif answer["next"] is None:
        print("no such message is unacknowledged")
    if answer["unreadableEntries"]:
        print(f"{answer['unreadableEntries']} damaged entries were left out")
    if answer["next"] is not None:
        print(f"stopped after {answer['examinedEntries']} entries; go on with --after {answer['next']}")
