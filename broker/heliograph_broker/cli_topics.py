"""``heliograph topics …``: list, inspect, create and delete topics through the admin API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .cli_figures import new_table, readable_age, readable_size
from .cli_support import (
    DEFAULT_HTTP_URL,
    HttpUrl,
    call_broker,
    console,
    format_count,
    parse_topic,
    print_json,
    usage_error,
)
from .clock import SystemClock
from .resources.names import TopicName

if TYPE_CHECKING:
    from .admin_client import AdminClient

topics_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List, inspect, create and delete topics of a running broker.

    \b
    Examples:
      heliograph topics list
      heliograph topics list acme/shop
      heliograph topics create orders --partitions 4
      heliograph topics stats orders

    A topic may be written short: 'orders' is persistent://public/default/orders.
    """,
)

TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="'orders', 'tenant/ns/orders' or the full name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the broker's answer as JSON, for programs.")]


@topics_app.command("list")
def list_topics(
    namespace: Annotated[str, typer.Argument(metavar="[NAMESPACE]", help="As 'tenant/namespace'.")] = "public/default",
    as_json: AsJson = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """List the topics of a namespace, a partitioned one as one.

    \b
    Examples:
      heliograph topics list
      heliograph topics list acme/shop --json
    """
    if namespace.count("/") != 1:
        usage_error(f"NAMESPACE {namespace!r} should be tenant/namespace, as in public/default")

    async def work(client: AdminClient) -> list[dict[str, Any]]:
        partitioned = await client.partitioned_topics(namespace)
        rows = [{"name": name, "partitions": await client.partitions(TopicName.parse(name))} for name in partitioned]
        for name in await client.topics(namespace):
            if str(TopicName.parse(name).base) not in partitioned:
                rows.append({"name": name, "partitions": 0})
        return sorted(rows, key=lambda row: str(row["name"]))

    rows = call_broker(http_url, work)
    if as_json:
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
def stats(topic: TopicArgument, as_json: AsJson = False, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Show a topic's backlog by subscription; of a partitioned topic the sums over its partitions.

    The backlog counts messages (not batches) and bytes that the subscription has not acknowledged. The age is that
    of the oldest of them.

    \b
    Examples:
      heliograph topics stats orders
      heliograph topics stats persistent://acme/shop/orders --json
    """
    from .admin_client import oldest_age_ms

    name = parse_topic(topic)
    answer = call_broker(http_url, lambda client: client.stats(name), topic=name)
    if as_json:
        print_json(answer)
        return
    kind = f" ({answer['metadata']['partitions']} partitions)" if "metadata" in answer else ""
    print(f"{name}{kind}")
    print(
        f"received {format_count(answer['msgInCounter'])} messages, {readable_size(answer['bytesInCounter'])}; "
        f"stored {readable_size(answer['storageSize'])}; producers {len(answer['publishers'])}\n"
    )
    if not answer["subscriptions"]:
        print("no subscriptions: nothing is kept beyond what retention says")
        return
    table = new_table("SUBSCRIPTION", "TYPE", ">CONSUMERS", ">DELIVERED", ">BACKLOG", ">BYTES", ">OLDEST")
    now_ms = SystemClock().now_ms()
    for subscription, figures in sorted(answer["subscriptions"].items()):
        table.add_row(
            subscription,
            figures.get("type") or "-",
            format_count(len(figures["consumers"])),
            format_count(figures["msgOutCounter"]),
            format_count(figures["msgBacklog"]),
            readable_size(figures["backlogSize"]),
            readable_age(oldest_age_ms(figures, now_ms)),
        )
    console().print(table)


@topics_app.command("create")
def create(
    topic: TopicArgument,
    partitions: Annotated[int, typer.Option(min=0, max=10_000, help="0 makes a topic that is not partitioned.")] = 0,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Create a topic. Policies are set by manifests (heliograph apply).

    \b
    Examples:
      heliograph topics create orders
      heliograph topics create acme/shop/orders --partitions 4
    """
    name = parse_topic(topic)
    call_broker(http_url, lambda client: client.create_topic(name, partitions=partitions), topic=name)
    print(f"topic/{name} created")


@topics_app.command("delete")
def delete(
    topic: TopicArgument,
    force: Annotated[bool, typer.Option("--force", help="Disconnect its producers and consumers first.")] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Delete a topic with its partitions, subscriptions and data.

    \b
    Examples:
      heliograph topics delete orders
      heliograph topics delete orders --force
    """
    name = parse_topic(topic)
    call_broker(http_url, lambda client: client.delete_topic(name, force=force), topic=name)
    print(f"topic/{name} deleted")
