"""``heliograph topics …``: list, inspect, create and delete topics through the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from heliograph_api.tables import new_table, readable_age
from heliograph_api.values.names import TopicName
from heliograph_api.values.readable import readable_size

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    Output,
    OutputOption,
    TopicArgument,
    call_broker,
    console,
    format_count,
    namespace_target,
    parse_topic,
    print_json,
    request,
    target_of,
    topic_target,
)
from heliograph_broker.cli.policies.policy_commands import Level, add_policy_commands
from heliograph_broker.cli.policies.policy_levels import TOPIC_POLICIES
from heliograph_broker.clock import SystemClock

from .grants import add_topic_grant_commands
from .subscriptions import add_subscription_commands
from .topic_operations import add_topic_operations

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

topics_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Manage topics, their policies and their subscriptions.

    \b
    Examples:
      heliograph topics list acme/shop
      heliograph topics create orders --partitions 4
      heliograph topics stats orders
      heliograph topics set-retention orders --size 10G --time 3h
      heliograph topics get-retention orders --applied
      heliograph topics skip orders -s billing -n 10

    A topic may be written short: 'orders' is persistent://public/default/orders. get-NAME prints what set-NAME sets,
    and remove-NAME removes it. Sizes are 10G, 512M or a number of bytes; times are 3h, 90s, 7d or a number of seconds;
    -1 means no limit.
    """,
)

_PARTITIONS = typer.Option("--partitions", "-p", min=1, max=10_000, help="Number of partitions.")


@topics_app.command("list")
def list_topics(
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="Namespace, as 'tenant/namespace'.")
    ] = "public/default",
    system: Annotated[
        bool, typer.Option("--include-system-topic", "-ist", help="List system topics, too, such as __change_events.")
    ] = False,
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """List the topics of a namespace; a partitioned topic is one line.

    \b
    Examples:
      heliograph topics list
      heliograph topics list acme/shop -o json
      heliograph topics list --include-system-topic
    """
    target = namespace_target(namespace)

    async def work(client: AdminClient) -> list[dict[str, Any]]:
        partitioned = await client.partitioned_topics(namespace, system=system)
        rows = [{"name": name, "partitions": await client.partitions(TopicName.parse(name))} for name in partitioned]
        for name in await client.topics(namespace, system=system):
            if str(TopicName.parse(name).base) not in partitioned:
                rows.append({"name": name, "partitions": 0})
        return sorted(rows, key=lambda row: str(row["name"]))

    rows = call_broker(http_url, work, target=target)
    if output is Output.JSON:
        print_json(rows)
        return
    table = new_table("TOPIC", ">PARTITIONS")
    for row in rows:
        table.add_row(row["name"], str(row["partitions"] or "-"))
    if rows:
        console().print(table)
    else:
        print(f"no topics in {namespace}")


@topics_app.command("stats")
def stats(topic: TopicArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Show a topic's backlog by subscription; for a partitioned topic, the sums over its partitions.

    The backlog counts messages (not batches) and bytes that the subscription has not acknowledged. The age is that
    of the oldest of them.

    \b
    Examples:
      heliograph topics stats orders
      heliograph topics stats persistent://acme/shop/orders -o json
    """
    from heliograph_api.admin.admin_client import oldest_age_ms

    name = parse_topic(topic)
    answer = call_broker(http_url, lambda client: client.stats(name), target=target_of(name))
    if output is Output.JSON:
        print_json(answer)
        return
    kind = f" ({answer['metadata']['partitions']} partitions)" if "metadata" in answer else ""
    print(f"{name}{kind}")
    print(
        f"received {_messages(answer['msgInCounter'])}, {readable_size(answer['bytesInCounter'])} bytes; "
        f"stored {readable_size(answer['storageSize'])} bytes; producers {len(answer['publishers'])}"
    )
    if answer["keptByLedgerMessages"]:
        print(
            "kept only as long as their ledger, because no retention is set: "
            f"{_messages(answer['keptByLedgerMessages'])}, {readable_size(answer['keptByLedgerSize'])} bytes"
        )
    print()
    if not answer["subscriptions"]:
        print("no subscriptions")
        return
    table = new_table("SUBSCRIPTION", "TYPE", ">CONSUMERS", ">DELIVERED", ">BACKLOG", ">BYTES", ">OLDEST")
    now_ms = SystemClock().now_ms()
    for subscription, stats in sorted(answer["subscriptions"].items()):
        table.add_row(
            subscription,
            stats.get("type") or "-",
            format_count(len(stats["consumers"])),
            format_count(stats["msgOutCounter"]),
            format_count(stats["msgBacklog"]),
            readable_size(stats["backlogSize"]),
            readable_age(oldest_age_ms(stats, now_ms)),
        )
    console().print(table)


@topics_app.command("create")
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int,
        typer.Option(
            "--partitions", "-p", min=0, max=10_000, help="Number of partitions; 0: the topic is not partitioned."
        ),
    ] = 0,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Create a topic.

    \b
    Examples:
      heliograph topics create orders
      heliograph topics create acme/shop/orders --partitions 4
    """
    name = parse_topic(topic)
    call_broker(http_url, lambda client: client.create_topic(name, partitions=partitions), target=target_of(name))
    print(f"topic/{name} created")


@topics_app.command("create-partitioned-topic")
@topics_app.command("create-partitioned", hidden=True)
def create_partitioned(
    topic: TopicArgument, partitions: Annotated[int, _PARTITIONS], http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Create a partitioned topic.

    \b
    Examples:
      heliograph topics create-partitioned-topic orders --partitions 4
    """
    create(topic, partitions, http_url)


@topics_app.command("update-partitioned-topic")
@topics_app.command("update-partitioned", hidden=True)
def update_partitioned(
    topic: TopicArgument, partitions: Annotated[int, _PARTITIONS], http_url: HttpUrl = DEFAULT_HTTP_URL
) -> None:
    """Increase the partitions of a topic. Keys may move to other partitions; the number cannot be decreased.

    \b
    Examples:
      heliograph topics update-partitioned-topic orders --partitions 8
    """
    target = topic_target(topic)
    path = f"{target.path}/partitions"
    request(http_url, "POST", path, body=partitions, target=target)
    print(f"topic/{target.name} has {partitions} partitions")


@topics_app.command("delete")
@topics_app.command("delete-partitioned-topic", hidden=True)
def delete(
    topic: TopicArgument,
    force: Annotated[bool, typer.Option("-f", "--force", help="Disconnect its producers and consumers first.")] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Delete a topic with its partitions, subscriptions and data.

    \b
    Examples:
      heliograph topics delete orders
      heliograph topics delete orders --force
    """
    name = parse_topic(topic)
    call_broker(http_url, lambda client: client.delete_topic(name, force=force), target=target_of(name))
    print(f"topic/{name} deleted")


def _messages(number: int) -> str:
    return f"{format_count(number)} message{'s' if number != 1 else ''}"


add_topic_operations(topics_app)
add_subscription_commands(topics_app)
add_topic_grant_commands(topics_app)
add_policy_commands(
    topics_app,
    Level(
        "topics", "TOPIC", "Topic: 'orders', 'tenant/ns/orders' or the full name.", "orders", topic_target, applied=True
    ),
    TOPIC_POLICIES,
)
