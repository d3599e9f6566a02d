"""``heliograph produce`` and ``heliograph consume``, through the official Pulsar client as any program would."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph_broker.cli.base.official_client import CONNECT_S, official_client
from heliograph_broker.cli.base.service_check import Use
from heliograph_broker.cli.base.shared_options import (
    DEFAULT_SERVICE_URL,
    CliError,
    MessageOutputOption,
    Output,
    ServiceUrl,
    parse_properties,
    parse_topic,
    usage_error,
)

_SECOND_MS = 1000


class SubscriptionType(StrEnum):
    """The four of Pulsar, by its own spelling."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


def produce(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic: 'orders', 'tenant/ns/orders' or the full name.")
    ],
    message: Annotated[
        list[str] | None, typer.Option("-m", "--message", metavar="TEXT", help="Content of a message; may be repeated.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="File with one message per line; '-' reads standard input."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Key of every message.")] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="Property of the messages; may be repeated."),
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Number of times to send all messages.")] = 1,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Send messages to a topic and wait until the broker has stored every one of them.

    \b
    Examples:
      heliograph produce orders -m hello
      heliograph produce orders -m '{"id": 7}' --key customer-1 --property source=web
      heliograph produce orders -m ping -n 1000
      heliograph produce orders --file lines.txt
    """
    name = str(parse_topic(topic))
    if not message and file is None:
        usage_error("nothing to send: give -m TEXT or --file FILE")
    options = {"partition_key": key, "properties": parse_properties(properties or [])}
    errors: list[Any] = []
    sent = 0

    with official_client(service_url, CONNECT_S, Use(name)) as (client, pulsar):
        producer = client.create_producer(
            name, batching_enabled=True, batching_type=pulsar.BatchingType.KeyBased, block_if_queue_full=True
        )

        def receipt(result: Any, _message_id: Any) -> None:
            if result != pulsar.Result.Ok:
                errors.append(result)

        for _ in range(count):
            for payload in _payloads(message or [], file):
                producer.send_async(payload, receipt, **options)
                sent += 1
                if errors:
                    break
        producer.flush()
        producer.close()
    if errors:
        raise CliError(f"{len(errors)} of {sent} messages to {name} were not stored: {errors[0]}")
    print(f"sent {sent} message{'s' if sent != 1 else ''} to {name}")


def _payloads(messages: list[str], file: str | None) -> Iterator[bytes]:
    yield from (text.encode() for text in messages)
    if file == "-":
        yield from (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    elif file is not None:
        try:
            with Path(file).open("rb") as lines:
                yield from (line.rstrip(b"\r\n") for line in lines)
        except OSError as error:
            raise CliError(f"cannot read {file}: {error.strerror}") from error


def consume(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic: 'orders', 'tenant/ns/orders' or the full name.")
    ],
    subscription: Annotated[str, typer.Option("-s", "--subscription", metavar="NAME", help="Created if missing.")],
    subscription_type: Annotated[
        SubscriptionType,
        typer.Option(
            "-t",
            "--type",
            case_sensitive=False,
            metavar="TYPE",
            help="Type of the subscription: Exclusive, Shared, Failover or Key_Shared.",
        ),
    ] = SubscriptionType.EXCLUSIVE,
    count: Annotated[
        int, typer.Option("-n", "--count", min=0, help="Number of messages to receive; 0: until Ctrl-C.")
    ] = 1,
    earliest: Annotated[
        bool, typer.Option("--earliest", help="Start a new subscription at the oldest message instead of the next one.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", min=0.0, metavar="SECONDS", help="Stop after this time without a broker or a message."
        ),
    ] = None,
    output: MessageOutputOption = Output.TEXT,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Receive messages of a subscription, print one per line, and acknowledge each.

    Exits with code 1 if --timeout passes before -n messages are received.

    \b
    Examples:
      heliograph consume orders -s billing
      heliograph consume orders -s billing --earliest -n 100 --timeout 10
      heliograph consume orders -s workers -t Shared -n 0
      heliograph consume orders -s audit -o json | jq .key
    """
    name = str(parse_topic(topic))
    taken = 0
    use = Use(name, subscription)
    with official_client(service_url, CONNECT_S if timeout is None else timeout, use) as (client, pulsar):
        consumer = client.subscribe(
            name,
            subscription,
            consumer_type=getattr(pulsar.ConsumerType, subscription_type.value.replace("_", "")),
            initial_position=pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest,
            # Taking one message of a batch must not take, or bring back, the others.
            batch_index_ack_enabled=True,
            receiver_queue_size=min(count, 1000) if count else 1000,
        )
        try:
            for _ in range(count) if count else itertools.count():
                received = _receive(consumer, pulsar, timeout)
                if received is None:
                    break
                _print_message(received, output)
                consumer.acknowledge(received)
                taken += 1
        except KeyboardInterrupt:
            if count:
                raise
        finally:
            # Closing sends the acknowledgements that the client has grouped.
            consumer.close()
    if count and taken < count:
        raise CliError(f"received {taken} of {count} messages from {name}: none came for {timeout:g} s")


def _receive(consumer: Any, pulsar: Any, timeout: float | None) -> Any:
    """Return the next message, or None if none came in time. Waits in slices, so that Ctrl-C is noticed."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left_ms = _SECOND_MS if deadline is None else int((deadline - time.monotonic()) * 1000)
        try:
            return consumer.receive(max(1, min(_SECOND_MS, left_ms)))
        except pulsar.Timeout:
            if deadline is not None and time.monotonic() >= deadline:
                return None


def _print_message(message: Any, output: Output) -> None:
    text = message.data().decode(errors="replace")
    if output is Output.JSON:
        text = json.dumps(
            {
                "topic": message.topic_name(),
                "id": str(message.message_id()),
                "key": message.partition_key() or None,
                "properties": message.properties(),
                "publishTime": message.publish_timestamp(),
                "eventTime": message.event_timestamp() or None,
                "redeliveryCount": message.redelivery_count(),
                "value": text,
            },
            ensure_ascii=False,
        )
    print(text, flush=True)
