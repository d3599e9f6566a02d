"""``heliograph topics …`` for a whole topic: read its state, terminate, truncate and compact it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer
from heliograph_api.tables import new_table, readable_time

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    CliError,
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
    print_lines,
    request,
    target_of,
    topic_target,
)

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient

_COMPACTION_POLL_S = 0.5


def add_topic_operations(app: typer.Typer) -> None:
    """Register these commands with ``heliograph topics``."""
    app.command("list-partitioned-topics")(list_partitioned)
    app.command("get-partitioned-topic-metadata")(partitioned_metadata)
    app.command("stats-internal")(stats_internal)
    app.command("partitioned-stats")(partitioned_stats)
    app.command("damaged")(damaged)
    app.command("lookup")(lookup)
    app.command("last-message-id")(last_message_id)
    app.command("unload")(unload)
    app.command("truncate")(truncate)
    app.command("terminate")(terminate)
    app.command("partitioned-terminate", hidden=True)(terminate)
    app.command("compact")(compact)
    app.command("compaction-status")(compaction_status)


def _asked(topic: str, path: str, http_url: str, **options: Any) -> Any:
    """Return the broker's response for ``path`` below the topic's path."""
    target = topic_target(topic)
    return request(http_url, "GET", f"{target.path}/{path}", target=target, **options)


def list_partitioned(
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="Namespace, as 'tenant/namespace'.")
    ] = "public/default",
    output: OutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """List the partitioned topics of a namespace.

    \b
    Examples:
      heliograph topics list-partitioned-topics acme/shop
    """
    target = namespace_target(namespace)
    names = call_broker(http_url, lambda client: client.partitioned_topics(target.name), target=target)
    print_lines(names, output)


def partitioned_metadata(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print how many partitions a topic has, as JSON; 0 if it is not partitioned.

    \b
    Examples:
      heliograph topics get-partitioned-topic-metadata orders
    """
    print_json(_asked(topic, "partitions", http_url))


def stats_internal(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the ledgers and cursors of a topic or partition, as JSON.

    \b
    Examples:
      heliograph topics stats-internal orders
    """
    print_json(_asked(topic, "internalStats", http_url))


def partitioned_stats(
    topic: TopicArgument,
    per_partition: Annotated[bool, typer.Option("--per-partition", help="Include each partition.")] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Print the statistics of a partitioned topic, as JSON.

    \b
    Examples:
      heliograph topics partitioned-stats orders
      heliograph topics partitioned-stats orders --per-partition
    """
    params = {"perPartition": str(per_partition).lower(), "getEarliestTimeInBacklog": "true"}
    print_json(_asked(topic, "partitioned-stats", http_url, params=params))


def damaged(topic: TopicArgument, output: OutputOption = Output.TEXT, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """List the entries of a topic, or of one partition, that could not be read, and why.

    Subscriptions skip these entries without delivering them; they are then acknowledged and in no backlog.

    \b
    Examples:
      heliograph topics damaged orders
      heliograph topics damaged orders-partition-0
    """
    answer = _asked(topic, "damaged", http_url)
    if output is Output.JSON:
        print_json(answer)
        return
    if not answer["entries"]:
        print("no damaged entries were found")
        return
    table = new_table("FIRST", "LAST", ">ENTRIES", "FOUND", "REASON")
    for each in answer["ranges"]:
        table.add_row(
            f"{each['ledgerId']}:{each['entryId']}",
            f"{each['lastLedgerId']}:{each['lastEntryId']}",
            format_count(each["entries"]),
            readable_time(each["foundTimestamp"]),
            each["reason"],
        )
    console().print(table)
    print(f"{format_count(answer['entries'])} damaged entries in all")


def lookup(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the URL that clients of a topic connect to.

    \b
    Examples:
      heliograph topics lookup orders
    """
    target = topic_target(topic)
    path = f"/lookup/v2/topic{target.path.removeprefix('/admin/v2')}"
    print(request(http_url, "GET", path, target=target)["brokerUrl"])


def last_message_id(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Print the id of the newest message of a topic or partition, as JSON; -1:-1 while there has been none.

    \b
    Examples:
      heliograph topics last-message-id orders
    """
    print_json(_asked(topic, "lastMessageId", http_url))


def unload(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Close and reopen a topic; clients reconnect by themselves.

    \b
    Examples:
      heliograph topics unload orders
    """
    target = topic_target(topic)
    request(http_url, "PUT", f"{target.path}/unload", target=target)
    print(f"topic/{target.name} unloaded")


def truncate(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Delete all messages of a topic, acknowledged or not; its subscriptions stay.

    \b
    Examples:
      heliograph topics truncate orders
    """
    target = topic_target(topic)
    request(http_url, "DELETE", f"{target.path}/truncate", target=target)
    print(f"topic/{target.name} truncated")


def terminate(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Close a topic for publishing, permanently; the messages in it can still be consumed.

    \b
    Examples:
      heliograph topics terminate orders
    """
    name = parse_topic(topic)
    target = target_of(name)

    async def work(client: AdminClient) -> Any:
        partitioned = name.partition < 0 and await client.partitions(name) > 0
        path = f"{target.path}/terminate" + ("/partitions" if partitioned else "")
        return await client.request("POST", path)

    answer = call_broker(http_url, work, target=target)
    last = {"": answer} if "ledgerId" in answer else {f"-partition-{index}": at for index, at in answer.items()}
    for suffix, position in sorted(last.items()):
        print(f"topic/{target.name}{suffix} terminated after {position['ledgerId']}:{position['entryId']}")


def compact(topic: TopicArgument, http_url: HttpUrl = DEFAULT_HTTP_URL) -> None:
    """Start compaction: readers that ask for it receive only the last message of each key. Returns at once.

    \b
    Examples:
      heliograph topics compact prices
    """
    target = topic_target(topic)
    request(http_url, "PUT", f"{target.path}/compaction", target=target)
    print(f"topic/{target.name} compaction started")


def compaction_status(
    topic: TopicArgument,
    wait: Annotated[bool, typer.Option("--wait-complete", "-w", help="Wait until compaction has ended.")] = False,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Print the status of the last compaction: NOT_RUN, RUNNING, SUCCESS or ERROR (exit code 1).

    \b
    Examples:
      heliograph topics compaction-status prices
      heliograph topics compaction-status prices --wait-complete
    """
    target = topic_target(topic)

    async def work(client: AdminClient) -> Any:
        while True:
            answer = await client.request("GET", f"{target.path}/compaction")
            if not wait or answer["status"] != "RUNNING":
                return answer
            await asyncio.sleep(_COMPACTION_POLL_S)

    answer = call_broker(http_url, work, target=target)
    if answer["status"] == "ERROR":
        raise CliError(f"{target.name}: compaction failed: {answer.get('lastError') or 'the broker gives no reason'}")
    print(answer["status"])
