"""Questions about positions: the last message, whether there are more, seeks by id and by time, and resets by REST."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pulsar
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import DEADLINE_MS
from tests.support.entries import make_entry
from tests.support.wire_client import Type, WireClient, payload_of

from .place import Answers, Place, question

_END = "end"
#: The messages of a topic: entries of one message, and one of three.
_ENTRIES: tuple[list[bytes], ...] = ([b"0"], [b"1"], [b"2"], [b"3", b"4", b"5"], [b"6"], [b"7"])
#: Entries from the last to one that is sought before it is there.
_AHEAD = 3
_LATEST_LEDGER = (1 << 63) - 1


class _Topic:
    """A topic with the messages above, published a second apart."""

    def __init__(self, place: Place, local: str) -> None:
        self.place = place
        self.name = place.look_up(local)
        self.producer = place.next_id()
        place.wire.request(Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=self.name, producer_id=self.producer)
        self.first_ms = int(time.time() * 1000) - 60_000
        self.ids: list[Any] = []
        for payloads in _ENTRIES:
            self.publish(payloads)

    def publish(self, payloads: list[bytes]) -> None:
        at = len(self.ids)
        entry = make_entry(
            payloads if len(payloads) > 1 else payloads[0], sequence_id=at, publish_time=self.first_ms + at * 1000
        )
        count = len(payloads)
        self.ids.append(self.place.wire.publish(self.producer, entry, sequence_id=at, num_messages=count))

    def message_id(self, entry: int, batch_index: int = -1) -> pulsar.MessageId:
        """Return the id of an entry, or of a message of it."""
        return pulsar.MessageId(-1, self.ids[entry].ledgerId, self.ids[entry].entryId, batch_index)

    def end(self) -> None:
        """Publish more messages, as many as a target is ahead, and the one that readers stop at."""
        for payload in (*(b"%d" % number for number in range(8, 8 + _AHEAD)), _END.encode()):
            self.publish([payload])

    def position(self, ledger_id: int, entry_id: int) -> Any:
        """Return an entry's index in the topic; -1 stays what it is."""
        for at, each in enumerate(self.ids):
            if (each.ledgerId, each.entryId) == (ledger_id, entry_id):
                return at
        signed = [number - (1 << 64) if number > _LATEST_LEDGER else number for number in (ledger_id, entry_id)]
        return "before all" if signed[1] == -1 else signed


def _until_end(receive: Callable[[int], Any]) -> list[str]:
    """Read until the message that ends the topic."""
    payloads: list[str] = []
    while _END not in payloads:
        payloads.append(receive(DEADLINE_MS).data().decode())
    return payloads[:-1]


def _received(consumers: dict[str, pulsar.Consumer]) -> Answers:
    """Read what each consumer gets until the topic ends."""
    return {what: _until_end(consumer.receive) for what, consumer in consumers.items()}


def _targets(topic: _Topic) -> dict[str, Any]:
    """Return what can be sought, by what it is."""
    last = topic.ids[-1]
    return {
        "earliest": pulsar.MessageId.earliest,
        "latest": pulsar.MessageId.latest,
        "first": topic.message_id(0),
        "third": topic.message_id(2),
        "batch as a whole": topic.message_id(3),
        "first of the batch": topic.message_id(3, 0),
        "second of the batch": topic.message_id(3, 1),
        "last of the batch": topic.message_id(3, 2),
        "last": topic.message_id(len(_ENTRIES) - 1),
        "entry to come": pulsar.MessageId(-1, last.ledgerId, last.entryId + _AHEAD, -1),
        "ledger to come": pulsar.MessageId(-1, last.ledgerId + 1000, 0, -1),
        "ledger that never was": pulsar.MessageId(-1, 0, 0, -1),
        "time of the first": topic.first_ms,
        "time before the first": topic.first_ms - 10_000,
        "time of the third": topic.first_ms + 2000,
        "time between the third and the batch": topic.first_ms + 2500,
        "time of the last": topic.first_ms + (len(_ENTRIES) - 1) * 1000,
        "time after the last": topic.first_ms + 40_000,
    }


@question
def seeks(place: Place) -> Answers:
    """A consumer seeks, then reads what it gets: everywhere in a topic and beyond."""
    with place.client() as client:
        topic = _Topic(place, "sought")
        targets = _targets(topic)
        consumers = {what: client.subscribe(topic.name, f"s-{at}") for at, what in enumerate(targets)}
        for what, target in targets.items():
            consumers[what].seek(target)
        topic.end()
        return _received(consumers)


@question
def seeks_while_reading(place: Place) -> Answers:
    """A consumer has read and acknowledged some, and holds others, when it seeks back or ahead."""
    with place.client() as client:
        topic = _Topic(place, "read")
        consumers: dict[str, pulsar.Consumer] = {}
        earliest = pulsar.InitialPosition.Earliest
        for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
            for what in ("earliest", "third", "second of the batch", "time of the third", "last", "latest"):
                consumer = client.subscribe(topic.name, f"{kind.name}-{what}", kind, initial_position=earliest)
                for at in range(4):
                    message = consumer.receive(DEADLINE_MS)
                    if at < 2:
                        consumer.acknowledge(message)
                consumer.seek(_targets(topic)[what])
                consumers[f"{kind.name}, {what}"] = consumer
        topic.end()
        return {what: sorted(payloads) for what, payloads in _received(consumers).items()}


@question
def resets_by_rest(place: Place) -> Answers:
    """The same by REST, while the consumer is connected."""
    with place.client() as client:
        topic = _Topic(place, "reset")
        third = topic.ids[2]
        path = f"persistent/{place.namespace}/reset/subscription"
        resets: dict[str, tuple[str, Any]] = {
            "time of the first": (f"resetcursor/{topic.first_ms}", None),
            "time of the third": (f"resetcursor/{topic.first_ms + 2000}", None),
            "time after the last": (f"resetcursor/{topic.first_ms + 40_000}", None),
            "third": ("resetcursor", {"ledgerId": third.ledgerId, "entryId": third.entryId}),
            "after the third": (
                "resetcursor",
                {"ledgerId": third.ledgerId, "entryId": third.entryId, "excluded": True},
            ),
        }
        consumers = {}
        for at, (what, (action, body)) in enumerate(resets.items()):
            consumer = client.subscribe(
                topic.name, f"s-{at}", initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
            )
            for _ in range(2):
                consumer.acknowledge(consumer.receive(DEADLINE_MS))
            consumer.close()
            place.rest("POST", f"{path}/s-{at}/{action}", body)
            consumers[what] = client.subscribe(topic.name, f"s-{at}")
        topic.end()
        return _received(consumers)


@question
def readers(place: Place) -> Answers:
    """A reader starts somewhere, is asked whether there are messages, and reads what it gets."""
    answers: Answers = {}
    with place.client() as client:
        topic = _Topic(place, "readers")
        opened: dict[str, pulsar.Reader] = {}
        for what, target in _targets(topic).items():
            if isinstance(target, int):
                opened[what] = client.create_reader(topic.name, pulsar.MessageId.earliest)
                opened[what].seek(target)
                continue
            opened[what] = client.create_reader(topic.name, target)
            opened[f"{what}, inclusive"] = client.create_reader(topic.name, target, start_message_id_inclusive=True)
            if what not in ("earliest", "latest"):
                opened[f"{what}, sought"] = client.create_reader(topic.name, pulsar.MessageId.earliest)
                opened[f"{what}, sought"].seek(target)
        available = {what: reader.has_message_available() for what, reader in opened.items()}
        topic.end()
        for what, reader in opened.items():
            answers[what] = [available[what], _until_end(reader.read_next), reader.has_message_available()]
    return answers


@question
def readers_by_the_name_of_one_that_was_closed(place: Place) -> Answers:
    """A reader is closed, after a seek or without; another one of its name starts elsewhere."""
    answers: Answers = {}
    for sought in (False, True):
        for connection in ("its connection", "another connection"):
            topic = _Topic(place, f"closed-{len(answers)}")
            with WireClient(place.service_url) as client, WireClient(place.service_url) as other:
                reader = client.subscribe(topic.name, "reader", durable=False, start_message_id=topic.ids[0])
                if sought:
                    client.request(Type.SEEK, Type.SUCCESS, consumer_id=reader, message_id=topic.ids[-1])
                client.request(Type.CLOSE_CONSUMER, Type.SUCCESS, consumer_id=reader)
                second = client if connection == "its connection" else other
                reader = second.subscribe(topic.name, "reader", durable=False, start_message_id=topic.ids[1])
                second.flow(reader, 1)
                first = payload_of(second.expect(Type.MESSAGE)).decode()
            answers[f"on {connection}, {'sought' if sought else 'not sought'}"] = first
    return answers


@question
def last_message_ids(place: Place) -> Answers:
    """GET_LAST_MESSAGE_ID: the last message, and how far the subscription has got."""
    answers: Answers = {}
    topic = _Topic(place, "last")

    def asked(consumer_id: int) -> Any:
        answer = place.wire.request(
            Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=consumer_id
        )
        last, mark = answer.last_message_id, answer.consumer_mark_delete_position
        return {
            "last": topic.position(last.ledgerId, last.entryId),
            "batch index": last.batch_index,
            "partition": last.partition,
            "acknowledged up to": topic.position(mark.ledgerId, mark.entryId)
            if answer.HasField("consumer_mark_delete_position")
            else "unsaid",
        }

    latest = place.wire.subscribe(topic.name, "latest")
    answers["subscribed at the end"] = asked(latest)
    first = place.wire.subscribe(topic.name, "earliest", initialPosition=wire.CommandSubscribe.Earliest)
    answers["subscribed at the beginning"] = asked(first)
    place.wire.ack(first, topic.ids[0], topic.ids[1])
    answers["two acknowledged"] = asked(first)
    place.wire.ack(first, topic.ids[4])
    answers["one ahead acknowledged"] = asked(first)
    topic.publish([b"8", b"9"])
    answers["a batch is the last"] = asked(first)
    place.wire.ack(first, topic.ids[-1], ack_type=wire.CommandAck.Cumulative)
    answers["everything acknowledged"] = asked(first)
    empty = place.look_up("empty")
    consumer = place.wire.subscribe(empty)
    body = place.wire.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=consumer)
    none = body.last_message_id
    answers["empty topic"] = [none.entryId == (1 << 64) - 1, none.batch_index, none.partition]
    place.rest("PUT", f"persistent/{place.namespace}/parted/partitions", 2)
    part = place.look_up("parted-partition-1")
    consumer = place.wire.subscribe(part)
    place.wire.publish(place.wire.producer(part), make_entry(b"x"))
    body = place.wire.request(Type.GET_LAST_MESSAGE_ID, Type.GET_LAST_MESSAGE_ID_RESPONSE, consumer_id=consumer)
    answers["of a partition"] = [body.last_message_id.partition, body.last_message_id.batch_index]
    return answers
