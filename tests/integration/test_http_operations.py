"""Operations of the admin API on topics and subscriptions with messages in them; and its refusals."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

import pulsar
import pytest

from tests.support.clients import BATCH_WAITS_MS, RunningBroker, fresh_name, ignore_receipt, receive_many, rest
from tests.support.polling import eventually
from tests.support.rest import fetch


class Answer(NamedTuple):
    """Status, body as it came, headers."""

    status: int
    body: bytes
    headers: Any

    @property
    def reason(self) -> str:
        return str(json.loads(self.body)["reason"])


class Topic(NamedTuple):
    """A topic with messages, and requests below its path."""

    broker: RunningBroker
    name: str
    ledger: int

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """Send a request below the topic's path; a body of text goes as it is."""
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        url = f"{self.broker.http_url}/admin/v2/persistent/{self.name}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=60) as answer:
                return Answer(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return Answer(refusal.code, refusal.read(), refusal.headers)

    def done(self, method: str, path: str, body: object = None) -> None:
        answer = self.ask(method, path, body)
        assert answer.status == 204, answer

    def get(self, path: str) -> Any:
        return rest(self.broker, "GET", f"persistent/{self.name}{path}")

    def backlog(self, subscription: str = "s") -> int:
        return int(self.get("/stats")["subscriptions"][subscription]["msgBacklog"])

    def first(self, subscription: str = "s") -> bytes:
        """Return the oldest payload of a backlog."""
        return self.ask("GET", f"/subscription/{subscription}/position/1").body


@pytest.fixture
def namespace(broker: RunningBroker) -> Iterator[str]:
    """A namespace that keeps everything."""
    name = f"public/{fresh_name('ns')}"
    rest(broker, "PUT", f"namespaces/{name}", {})
    rest(broker, "POST", f"namespaces/{name}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    yield name
    rest(broker, "DELETE", f"namespaces/{name}?force=true")


@pytest.fixture
def full(broker: RunningBroker, client: pulsar.Client, namespace: str) -> Topic:
    """m0 … m9, unbatched, in the backlog of ``s``."""
    name = f"{namespace}/t"
    rest(broker, "PUT", f"persistent/{name}/subscription/s")
    producer = client.create_producer(name, batching_enabled=False)
    ids = [producer.send(f"m{at}".encode(), {"at": str(at)}) for at in range(10)]
    producer.close()
    return Topic(broker, name, ids[0].ledger_id())


@pytest.fixture
def batches(broker: RunningBroker, client: pulsar.Client, namespace: str) -> Topic:
    """Two entries of five messages, b0 … b4 and b5 … b9, in the backlog of ``s``."""
    name = f"{namespace}/b"
    rest(broker, "PUT", f"persistent/{name}/subscription/s")
    producer = client.create_producer(
        name,
        batching_enabled=True,
        batching_max_publish_delay_ms=BATCH_WAITS_MS,
        compression_type=pulsar.CompressionType.ZSTD,
    )
    for at in range(10):
        producer.send_async(f"b{at}".encode(), ignore_receipt)
        if at % 5 == 4:
            producer.flush()
    producer.close()
    stored = Topic(broker, name, -1)
    return stored._replace(ledger=stored.get("/lastMessageId")["ledgerId"])


def position(ledger: int, entry: int, **more: object) -> dict[str, object]:
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1, **more}


# -- single messages -----------------------------------------------------------------------------------------------


def test_a_message_is_answered_with_its_metadata_in_headers(
    broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    producer = client.create_producer(
        f"{namespace}/m",
        producer_name="p1",
        batching_enabled=False,
        compression_type=pulsar.CompressionType.LZ4,
        schema=pulsar.schema.StringSchema(),
    )
    sent = producer.send(
        "über " * 20, {"größe": "1 €", "a": "b\r\nc"}, partition_key="k", event_timestamp=1_700_000_000_000
    )
    producer.close()
    topic = Topic(broker, f"{namespace}/m", sent.ledger_id())
    answer = topic.ask("GET", f"/ledger/{sent.ledger_id()}/entry/{sent.entry_id()}")
    assert (answer.status, answer.body.decode()) == (200, "über " * 20)
    headers = {name.removeprefix("X-Pulsar-"): value for name, value in answer.headers.items()}
    assert headers["Message-ID"] == f"{sent.ledger_id()}:{sent.entry_id()}"
    assert json.loads(headers["PROPERTY"]) == {"größe": "1 €", "a": "b\r\nc"}
    assert headers["event-time"] == "2023-11-14T22:13:20Z"
    assert (headers["producer-name"], headers["sequence-id"], headers["partition-key"]) == ("p1", "0", "k")
    assert (headers["compression"], headers["uncompressed-size"]) == ("LZ4", str(len(answer.body)))
    assert headers["Base64-schema-version"] == "AAAAAAAAAAA="
    assert topic.ask("GET", "/examinemessage").body == answer.body


def test_a_batch_is_answered_whole(batches: Topic) -> None:
    answer = batches.ask("GET", "/subscription/s/position/2")
    assert answer.headers["X-Pulsar-num-batch-message"] == "5"
    assert [f"b{at}".encode() in answer.body for at in range(10)] == [False] * 5 + [True] * 5
    assert batches.get("/lastMessageId")["batchIndex"] == 4
    assert batches.ask("GET", "/subscription/s/position/3").status == 404


def test_what_is_acknowledged_is_not_peeked(full: Topic, client: pulsar.Client) -> None:
    consumer = client.subscribe(full.name, "s", pulsar.ConsumerType.Shared)
    for message in receive_many(consumer, 10, acknowledge=False):
        if message.data() in (b"m0", b"m1", b"m3", b"m7", b"m9"):
            consumer.acknowledge(message)
    eventually(lambda: full.backlog() == 5, what="the acknowledgements")
    consumer.close()
    peeked = [full.ask("GET", f"/subscription/s/position/{place}") for place in range(1, 7)]
    assert [answer.body for answer in peeked[:5]] == [b"m2", b"m4", b"m5", b"m6", b"m8"]
    assert peeked[5].status == 404


def test_positions_are_found_by_time_and_measured(full: Topic) -> None:
    published = [
        json.loads(full.ask("GET", f"/messageid/{milliseconds}").body)["entryId"] for milliseconds in (0, 2**53)
    ]
    assert published == [0, 10]
    total = int(full.ask("PUT", "/backlogSize", position(-1, -1)).body)
    assert total == full.get("/stats")["storageSize"]
    assert int(full.ask("PUT", "/backlogSize", position(full.ledger, 4)).body) == total // 2
    assert int(full.ask("PUT", "/backlogSize", position(full.ledger, 9)).body) == 0


# -- backlogs ------------------------------------------------------------------------------------------------------


def test_a_batch_can_be_skipped_in_part(batches: Topic, client: pulsar.Client) -> None:
    batches.done("POST", "/subscription/s/skip/7")
    assert batches.backlog() == 3
    assert json.loads(batches.ask("POST", "/subscription/s/analyzeBacklog").body)["messages"] == 3
    consumer = client.subscribe(batches.name, "s")
    assert [message.data() for message in receive_many(consumer, 3)] == [b"b7", b"b8", b"b9"]
    consumer.close()


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ({"batchIndex": 2}, b"b2"),
        ({"batchIndex": 2, "excluded": True}, b"b3"),
        ({"batchIndex": 4, "excluded": True}, b"b5"),
        ({"excluded": True}, b"b5"),
        ({}, b"b0"),
    ],
)
def test_a_cursor_is_reset_into_a_batch(
    batches: Topic, client: pulsar.Client, body: dict[str, object], first: bytes
) -> None:
    batches.done("POST", "/subscription/s/skip_all")
    batches.done("POST", "/subscription/s/resetcursor", position(batches.ledger, 0, **body))
    assert batches.backlog() == 10 - int(first[1:])
    consumer = client.subscribe(batches.name, "s")
    assert receive_many(consumer, 1)[0].data() == first
    consumer.close()


def test_the_ends_of_a_topic_are_positions_too(full: Topic) -> None:
    full.done("POST", "/subscription/s/resetcursor", position(2**63 - 1, 2**63 - 1))
    assert full.backlog() == 0
    full.done("POST", "/subscription/s/resetcursor", position(-1, -1))
    assert full.backlog() == 10
    full.done("POST", "/subscription/s/expireMessages", position(full.ledger, 3))
    assert (full.backlog(), full.first()) == (6, b"m4")
    full.done("POST", "/subscription/s/expireMessages", position(full.ledger, 1))
    assert full.backlog() == 6


def test_what_acts_on_a_partitioned_topic_acts_on_all_partitions(
    broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    topic = Topic(broker, f"{namespace}/p", -1)
    topic.done("PUT", "/partitions", 3)
    for subscription in ("s", "other"):
        topic.done("PUT", f"/subscription/{subscription}")

    def fill() -> None:
        producer = client.create_producer(topic.name, batching_enabled=False)
        for at in range(9):
            producer.send(b"%d" % at)
        producer.close()

    def backlogs(subscription: str) -> list[int]:
        return [Topic(broker, f"{topic.name}-partition-{at}", -1).backlog(subscription) for at in range(3)]

    fill()
    assert (sum(backlogs("s")), sum(backlogs("other"))) == (9, 9)
    topic.done("POST", "/subscription/s/skip_all")
    assert (sum(backlogs("s")), sum(backlogs("other"))) == (0, 9)
    topic.done("POST", "/subscription/s/resetcursor/0")
    assert sum(backlogs("s")) == 9
    topic.done("POST", "/subscription/s/expireMessages/0")
    assert (sum(backlogs("s")), sum(backlogs("other"))) == (0, 9)
    topic.done("POST", "/all_subscription/expireMessages/0")
    assert sum(backlogs("other")) == 0
    topic.done("PUT", "/subscription/s/properties", {"owner": "me"})
    assert topic.get("/subscription/s/properties") == {"owner": "me"}
    topic.done("PUT", "/compaction")
    for at in range(3):
        part = Topic(broker, f"{topic.name}-partition-{at}", -1)
        eventually(lambda part=part: part.get("/compaction")["status"] == "SUCCESS", what="compaction")  # type: ignore[misc]
    topic.done("DELETE", "/truncate")
    assert topic.get("/partitioned-stats")["storageSize"] == 0
    topic.done("PUT", "/unload")
    topic.done("DELETE", "/subscription/other")
    assert topic.get("/subscriptions") == ["s", "__compaction"]
    ended = json.loads(topic.ask("POST", "/terminate/partitions").body)
    assert set(ended) == {"0", "1", "2"}
    with pytest.raises(pulsar.PulsarException, match="Terminated"):
        fill()


def test_a_namespace_is_cleared_by_bundle(broker: RunningBroker, client: pulsar.Client, namespace: str) -> None:
    topics = [Topic(broker, f"{namespace}/t{at}", -1) for at in range(8)]
    bundles: dict[str, list[Topic]] = {}
    for topic in topics:
        topic.done("PUT", "/subscription/s")
        producer = client.create_producer(topic.name)
        producer.send(b"x")
        producer.close()
        bundle = fetch(f"{broker.http_url}/lookup/v2/topic/persistent/{topic.name}/bundle").decode()
        bundles.setdefault(bundle, []).append(topic)
    assert len(bundles) > 1
    for bundle, inside in bundles.items():
        listed = rest(broker, "GET", f"persistent/{namespace}?bundle={bundle}")
        assert listed == [f"persistent://{topic.name}" for topic in inside]
    bundle, inside = next(iter(bundles.items()))
    rest(broker, "POST", f"namespaces/{namespace}/{bundle}/clearBacklog")
    assert [topic.backlog() for topic in topics] == [0 if topic in inside else 1 for topic in topics]
    rest(broker, "POST", f"namespaces/{namespace}/0x00000000_0xffffffff/clearBacklog/s")
    assert [topic.backlog() for topic in topics] == [0] * 8
    rest(broker, "POST", f"namespaces/{namespace}/{bundle}/unsubscribe/s")
    assert [topic.get("/subscriptions") for topic in topics] == [[] if topic in inside else ["s"] for topic in topics]


def test_nothing_is_unsubscribed_while_a_consumer_is_connected(
    broker: RunningBroker, client: pulsar.Client, namespace: str
) -> None:
    topics = [Topic(broker, f"{namespace}/t{at}", -1) for at in range(3)]
    for topic in topics:
        topic.done("PUT", "/subscription/s")
    consumer = client.subscribe(topics[2].name, "s")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        rest(broker, "POST", f"namespaces/{namespace}/unsubscribe/s")
    assert refusal.value.code == 412
    refusal.value.close()
    assert [topic.get("/subscriptions") for topic in topics] == [["s"]] * 3
    consumer.close()


def test_a_topic_is_deleted_with_its_subscriptions_but_not_under_its_clients(
    full: Topic, client: pulsar.Client
) -> None:
    consumer = client.subscribe(full.name, "s")
    answer = full.ask("DELETE", "")
    assert (answer.status, "connected consumers" in answer.reason) == (412, True)
    consumer.close()
    producer = client.create_producer(full.name)
    answer = full.ask("DELETE", "")
    assert (answer.status, "connected producers" in answer.reason) == (412, True)
    assert full.backlog() == 10
    producer.close()
    full.done("DELETE", "")
    assert full.ask("GET", "/stats").status == 404


# -- refusals ------------------------------------------------------------------------------------------------------

_RESET = "/subscription/s/resetcursor"
_EXPIRE = "/subscription/s/expireMessages"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "part"),
    [
        ("POST", "/subscription/s/skip/-1", None, 400, "number of messages"),
        ("POST", "/subscription/s/skip/some", None, 400, "'some'"),
        ("POST", "/subscription/s/skip/99999999999999999999", None, 400, "number of messages"),
        ("POST", "/subscription/missing/skip/1", None, 404, "Subscription missing not found"),
        ("POST", "/subscription/missing/skip_all", None, 404, "Subscription missing not found"),
        ("POST", f"{_RESET}/-5", None, 400, "ms since 1970"),
        ("POST", _RESET, None, 400, "needs a JSON body"),
        ("POST", _RESET, {"ledgerId": 1}, 400, "entryId"),
        ("POST", _RESET, {"ledgerId": "1-", "entryId": 1}, 400, "ledgerId"),
        ("POST", _RESET, {"ledgerId": -2, "entryId": 1}, 400, "ledgerId"),
        ("POST", _RESET, {"ledgerId": 2**70, "entryId": 1}, 400, "ledgerId"),
        ("POST", _RESET, "{", 400, "not JSON"),
        ("POST", "/subscription/missing/resetcursor", position(0, 0), 404, "Subscription missing not found"),
        ("POST", f"{_EXPIRE}/-1", None, 400, "age in seconds"),
        ("POST", f"{_EXPIRE}/1.5", None, 400, "age in seconds"),
        ("POST", _EXPIRE, position(2**62, 0), 409, "not the id of a message"),
        ("POST", "/all_subscription/expireMessages/x", None, 400, "age in seconds"),
        ("GET", "/subscription/s/position/0", None, 400, "from 1 on"),
        ("GET", "/subscription/s/position/11", None, 404, "Message not found"),
        ("GET", "/examinemessage?initialPosition=middle", None, 400, "latest or earliest"),
        ("GET", "/examinemessage?messagePosition=99", None, 404, "keeps 10 entries"),
        ("GET", "/ledger/1/entry/99999", None, 404, "Message id not found"),
        ("GET", "/ledger/x/entry/1", None, 400, "ledger id"),
        ("GET", "/messageid/yesterday", None, 400, "ms since 1970"),
        ("PUT", "/backlogSize", {"ledger": 1}, 400, "ledgerId"),
        ("PUT", "/properties", {"a": []}, 400, "Expected `str`"),
        ("PUT", "/subscription/s/properties", {"a": None}, 400, "Expected `str`"),
        ("DELETE", "/properties", None, 400, "key"),
        ("PUT", "/subscription/x?replicated=true", None, 405, "one cluster"),
        ("PUT", "/subscription/x", {"ledgerId": 1, "entryId": 1, "properties": {"a": []}}, 400, "properties"),
        ("POST", "/subscription/s/replicatedSubscriptionStatus", True, 405, "one cluster"),
        ("POST", "/terminate/partitions", None, 405, "non-partitioned"),
        ("POST", "/createMissedPartitions", None, 404, "does not exist"),
        ("PUT", "/offload", position(1, 1), 412, "nothing can be offloaded"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason_and_changes_nothing(
    full: Topic, method: str, path: str, body: object, status: int, part: str
) -> None:
    answer = full.ask(method, path, body)
    assert (answer.status, part in answer.reason) == (status, True), answer
    assert (full.backlog(), full.get("/subscriptions"), full.get("/properties")) == (10, ["s"], {})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/subscription/s/skip/1", None),
        ("POST", _RESET, position(0, 0)),
        ("POST", _EXPIRE, position(0, 0)),
        ("POST", "/subscription/s/analyzeBacklog", None),
        ("GET", "/subscription/s/position/1", None),
        ("GET", "/examinemessage", None),
        ("GET", "/ledger/1/entry/1", None),
        ("GET", "/messageid/0", None),
        ("PUT", "/backlogSize", position(0, 0)),
        ("POST", "/terminate", None),
    ],
)
def test_what_has_no_meaning_for_all_partitions_is_refused(
    broker: RunningBroker, namespace: str, method: str, path: str, body: object
) -> None:
    topic = Topic(broker, f"{namespace}/p", -1)
    topic.done("PUT", "/partitions", 2)
    topic.done("PUT", "/subscription/s")
    answer = topic.ask(method, path, body)
    assert answer.status == 405, answer
    assert "partition" in answer.reason


@pytest.mark.parametrize(
    ("bundle", "part"),
    [
        ("0x00000000_0x50000000", "Expected upper boundary of {namespace}/0x00000000_0x40000000"),
        ("0x10000000_0x40000000", "Invalid lower boundary"),
        ("all", "Invalid bundle range"),
    ],
)
def test_a_bundle_that_is_none_is_refused(broker: RunningBroker, namespace: str, bundle: str, part: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        rest(broker, "PUT", f"namespaces/{namespace}/{bundle}/unload")
    with refusal.value as answer:
        assert answer.code == 412
        assert part.format(namespace=namespace) in json.loads(answer.read())["reason"]
