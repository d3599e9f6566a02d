"""``heliograph topics peek-messages``: read the oldest messages of a backlog without acknowledging them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from heliograph_api.admin.admin_paths import encoded_subscription

from heliograph_broker.cli.base.shared_options import (
    DEFAULT_HTTP_URL,
    CliError,
    HttpUrl,
    MessageOutputOption,
    Output,
    TopicArgument,
    call_broker,
    topic_target,
)

if TYPE_CHECKING:
    from heliograph_api.admin.admin_client import AdminClient, Answer

_HEADER = "x-pulsar-"


def peek_messages(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", metavar="NAME", help="Subscription whose backlog is read.")
    ],
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of messages.")] = 1,
    output: MessageOutputOption = Output.TEXT,
    http_url: HttpUrl = DEFAULT_HTTP_URL,
) -> None:
    """Print the oldest messages of a subscription's backlog, one per line, without acknowledging them.

    For a partitioned topic, name one of its partitions: orders-partition-0.

    \b
    Examples:
      heliograph topics peek-messages orders -s billing
      heliograph topics peek-messages orders -s billing -n 10 -o json
    """
    target = topic_target(topic)
    path = f"{target.path}/subscription/{encoded_subscription(subscription)}/position"

    async def work(client: AdminClient) -> list[dict[str, Any]]:
        # Imported when needed: a refusal for want of more entries differs from others by its type.
        from heliograph_api.admin.admin_client import AdminRefused

        found: list[dict[str, Any]] = []
        position = 1
        while len(found) < count:
            try:
                answer = await client.exchange("GET", f"{path}/{position}")
            except AdminRefused as error:
                if error.status == 404 and found:
                    break
                raise
            found += _messages(answer)
            position += 1
        return found[:count]

    for message in call_broker(http_url, work, target=target):
        print(json.dumps(message, ensure_ascii=False) if output is Output.JSON else message["value"])


def _messages(answer: Answer) -> Iterator[dict[str, Any]]:
    """Yield the messages of one entry, which is a message or a batch of them."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    common = {"id": headers.get(f"{_HEADER}message-id", ""), "publishTime": headers.get(f"{_HEADER}publish-time")}
    batch = headers.get(f"{_HEADER}num-batch-message")
    # Messages that the broker could not open are shown as they are stored.
    if batch is None or "x-heliograph-payload" in headers:
        properties = json.loads(headers.get(f"{_HEADER}property", "{}"))
        key = headers.get(f"{_HEADER}partition-key")
        yield {**common, "key": key, "properties": properties, "value": answer.body.decode(errors="replace")}
        return
    yield from _batch(common, int(batch), answer.body)


def _batch(common: Mapping[str, Any], count: int, body: bytes) -> Iterator[dict[str, Any]]:
    # The broker has decompressed the payload, so that its metadata are these.
    from heliograph_api.protocol import wire_pb2 as wire

    from heliograph_broker.messaging.messages.batches import BatchError, open_batch

    try:
        messages = open_batch(wire.MessageMetadata(num_messages_in_batch=count), body)
        for index, (metadata, payload) in enumerate(messages):
            yield {
                **common,
                "id": f"{common['id']}:{index}",
                "key": metadata.partition_key or None,
                "properties": {pair.key: pair.value for pair in metadata.properties},
                "value": payload.decode(errors="replace"),
            }
    except BatchError as error:
        raise CliError(f"message {common['id']}: {error}") from error
