"""A reader never touches a durable subscription of its name, and a refusal leaves nothing behind."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import RunningBroker, backlog, rest
from tests.support.wire_client import Type, WireClient, WireError, payload_of

Sub = wire.CommandSubscribe
TAKEN = "subscription with the same name already exists"


@pytest.fixture
def wired(broker: RunningBroker) -> Iterator[WireClient]:
    with WireClient(broker.service_url) as client:
        yield client


def subscriptions(broker: RunningBroker, topic: str) -> list[str]:
    return sorted(rest(broker, "GET", f"persistent/public/default/{topic}/subscriptions"))


@pytest.mark.parametrize("connected", [False, True])
def test_a_reader_cannot_take_a_durable_subscription_over(
    wired: WireClient, broker: RunningBroker, topic: str, connected: bool
) -> None:
    owner = wired.subscribe(topic, "s", subType=Sub.Shared)
    ids = wired.publish_numbers(topic, 5)
    if not connected:
        wired.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=owner)
    with pytest.raises(WireError, match=f"Durable {TAKEN}: 's'") as refused:
        wired.subscribe(topic, "s", durable=False, subType=Sub.Shared, start_message_id=ids[3])
    assert refused.value.code == wire.NotAllowedError
    assert subscriptions(broker, topic) == ["s"]
    assert backlog(broker, topic, "s") == 5
    if not connected:
        owner = wired.subscribe(topic, "s", subType=Sub.Shared)
    wired.flow(owner, 10)
    assert [payload_of(frame) for frame in wired.messages(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_durable_consumer_cannot_join_what_ends_with_a_reader(
    wired: WireClient, broker: RunningBroker, topic: str
) -> None:
    reader = wired.subscribe(topic, "s", durable=False, subType=Sub.Shared)
    with pytest.raises(WireError, match=f"NonDurable {TAKEN}: 's'") as refused:
        wired.subscribe(topic, "s", subType=Sub.Shared)
    assert refused.value.code == wire.NotAllowedError
    with pytest.raises(WireError, match=f"NonDurable {TAKEN}: 's'"):
        wired.producer(topic, initial_subscription_name="s")
    wired.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=reader)
    wired.subscribe(topic, "s", subType=Sub.Shared)
    wired.publish_numbers(topic, 2)
    assert backlog(broker, topic, "s") == 2


def test_it_is_the_same_on_partitions(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    rest(broker, "PUT", f"persistent/public/default/{topic}/partitions", 2)
    rest(broker, "PUT", f"persistent/public/default/{topic}/subscription/s", {"ledgerId": -1, "entryId": -1})
    for index in range(2):
        with pytest.raises(WireError, match=f"Durable {TAKEN}"):
            wired.subscribe(f"{topic}-partition-{index}", "s", durable=False)
    assert subscriptions(broker, topic) == ["s"]


def refused_subscribe(wired: WireClient, topic: str, **fields: Any) -> None:
    with pytest.raises(WireError, match=r"Ranges for KeyShared policy must not be empty|readCompacted"):
        wired.subscribe(topic, "refused", **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"subType": Sub.Key_Shared, "keySharedMeta": wire.KeySharedMeta(keySharedMode=wire.STICKY)},
        {"subType": Sub.Shared, "read_compacted": True},
    ],
    ids=["sticky without ranges", "compacted on Shared"],
)
@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_refused_subscribe_leaves_no_topic_and_no_subscription(
    wired: WireClient, broker: RunningBroker, topic: str, fields: dict[str, Any], domain: str
) -> None:
    refused_subscribe(wired, f"{domain}://public/default/{topic}", **fields)
    assert f"{domain}://public/default/{topic}" not in rest(broker, "GET", f"{domain}/public/default")
    wired.subscribe(f"{domain}://public/default/{topic}", "kept")
    refused_subscribe(wired, f"{domain}://public/default/{topic}", **fields)
    assert rest(broker, "GET", f"{domain}/public/default/{topic}/subscriptions") == ["kept"]


def test_a_refused_subscribe_leaves_no_schema(wired: WireClient, broker: RunningBroker, topic: str) -> None:
    wired.subscribe(topic, "s")
    schema = wire.Schema(name="n", type=wire.Schema.String, schema_data=b"")
    with pytest.raises(WireError, match="Exclusive consumer is already connected"):
        wired.subscribe(topic, "s", schema=schema)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        rest(broker, "GET", f"schemas/public/default/{topic}/schema")
    wired.subscribe(topic, "other", schema=schema)
    assert rest(broker, "GET", f"schemas/public/default/{topic}/schema")["type"] == "STRING"
