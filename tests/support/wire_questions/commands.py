"""Questions about the connection, look-ups, transactions, and commands that nobody asked for."""

from __future__ import annotations

from typing import Any

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.entries import make_entry
from tests.support.wire_client import ConnectionEndedError, Type, WireClient

from .place import Answers, Place, question

_TXN: dict[str, Any] = {"txnid_most_bits": 0, "txnid_least_bits": 2}


@question
def connected(place: Place) -> Answers:
    """CONNECTED, for clients that speak older and newer versions of the protocol."""
    answers: Answers = {}
    for version in (0, 12, 15, 21, 22):
        with WireClient(place.service_url, protocol_version=version) as client:
            announced = client.connected
        assert announced is not None
        answers[f"version for {version}"] = announced.protocol_version
        answers.setdefault("max_message_size", []).append(announced.max_message_size)
        for flag in wire.FeatureFlags.DESCRIPTOR.fields_by_name:
            answers.setdefault(flag, []).append(getattr(announced.feature_flags, flag))
    return answers


@question
def partitioned_metadata(place: Place) -> Answers:
    """The partitions of topics that are there and that are not, with and without the wish to create them."""
    place.rest("PUT", f"persistent/{place.namespace}/parted/partitions", 3)
    place.rest("PUT", f"persistent/{place.namespace}/plain")
    place.wire.producer(place.look_up("fleeting", "non-persistent"))
    named = {
        **{local: place.name(local) for local in ("parted", "plain", "parted-partition-1", "parted-partition-7")},
        **{local: place.name(local) for local in ("missing", "missing-partition-0")},
        **{f"non-persistent {local}": place.name(local, "non-persistent") for local in ("fleeting", "gone")},
        "no namespace": f"persistent://public/no-{place.local_namespace}/t",
        "no tenant": f"persistent://no-{place.local_namespace}/x/t",
    }
    answers: Answers = {}
    for wish, fields in (("not to create", False), ("to create", True), ("unsaid", None)):
        for what, name in named.items():
            answers[f"{wish}: {what}"] = place.partitions(name, auto_create=fields)
    answers["topics afterwards"] = place.topics()
    return answers


@question
def partitioned_metadata_by_policy(place: Place) -> Answers:
    """The same where topics are created with partitions, and where they are not created."""
    path = f"namespaces/{place.namespace}/autoTopicCreation"
    rule = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    place.rest("POST", path, rule)
    place.await_policy(before=0)
    answers = {
        "partitioned, not to create": place.partitions(place.name("a"), auto_create=False),
        "partitioned, to create": place.partitions(place.name("a"), auto_create=True),
        "created then, not to create": place.partitions(place.name("a"), auto_create=False),
    }
    place.rest("POST", path, {"allowAutoTopicCreation": False})
    place.await_policy(before=2)
    answers |= {
        f"no creation, {wish}: {local}": place.partitions(place.name(local), auto_create=create)
        for wish, create in (("not to create", False), ("to create", True))
        for local in ("a", "a-partition-1", "a-partition-5", "missing-too")
    }
    return answers


@question
def lookup(place: Place) -> Answers:
    """LOOKUP of topics that are there and that are not, and by the name of a listener."""
    through_service_url = []

    def of(local: str, **fields: Any) -> Any:
        answer = place.ask(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=place.name(local), **fields)
        through_service_url.append(answer.pop("proxy_through_service_url", None))
        return answer

    place.rest("PUT", f"persistent/{place.namespace}/plain")
    answers = {
        "topic": of("plain"),
        "missing topic": of("missing"),
        "no listener's name": of("plain", advertised_listener_name=""),
        "unknown listener": of("plain", advertised_listener_name="outside"),
        "another unknown listener": of("missing", advertised_listener_name="internal"),
        "no namespace": place.ask(
            Type.LOOKUP, Type.LOOKUP_RESPONSE, topic=f"persistent://public/no-{place.local_namespace}/t"
        ),
    }
    return answers | {"through the service URL": through_service_url, "topics afterwards": place.topics()}


@question
def transactions(place: Place) -> Answers:
    """Every command of a transaction, to a broker without a coordinator; the connection goes on after each."""
    topic = place.look_up("t")
    subscription = wire.Subscription(topic=topic, subscription="s")
    requests: list[tuple[int, int, dict[str, Any]]] = [
        (Type.TC_CLIENT_CONNECT_REQUEST, Type.TC_CLIENT_CONNECT_RESPONSE, {"tc_id": 0}),
        (Type.NEW_TXN, Type.NEW_TXN_RESPONSE, {"tc_id": 0, "txn_ttl_seconds": 10}),
        (Type.ADD_PARTITION_TO_TXN, Type.ADD_PARTITION_TO_TXN_RESPONSE, {"partitions": [topic], **_TXN}),
        (Type.ADD_SUBSCRIPTION_TO_TXN, Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, {"subscription": [subscription], **_TXN}),
        (Type.END_TXN, Type.END_TXN_RESPONSE, {"txn_action": wire.COMMIT, **_TXN}),
    ]
    answers: Answers = {}
    for kind, answer, fields in requests:
        request_id = 9000 + kind
        place.wire.send(kind, request_id=request_id, **fields)
        frame = place.wire.expect(Type.ERROR)
        assert frame.body.request_id == request_id, answer
        answers[Type.Type.Name(kind)] = [wire.ServerError.Name(frame.body.error), frame.body.message]  # type: ignore[arg-type]
    producer = place.next_id()
    answers["PRODUCER"] = place.ask(
        Type.PRODUCER, Type.PRODUCER_SUCCESS, topic=topic, producer_id=producer, txn_enabled=True
    )
    consumer = place.wire.subscribe(topic)
    message_id = place.wire.publish(producer, make_entry(b"outside"))
    place.wire.send(Type.SEND, make_entry(b"inside"), producer_id=producer, sequence_id=1, num_messages=1, **_TXN)
    answers["SEND"] = wire.ServerError.Name(place.wire.expect(Type.SEND_ERROR).body.error)
    place.wire.send(
        Type.ACK,
        consumer_id=consumer,
        ack_type=wire.CommandAck.Individual,
        message_id=[message_id],
        request_id=9999,
        **_TXN,
    )
    answers["ACK"] = wire.ServerError.Name(place.wire.expect(Type.ACK_RESPONSE).body.error)
    place.wire.publish(producer, make_entry(b"afterwards"), sequence_id=2)
    place.wire.flow(consumer, 10)
    received = place.wire.messages(2)
    answers["received on the same connection"] = [frame.entry[-10:].decode("latin-1")[-4:] for frame in received]
    return answers


@question
def unasked(place: Place) -> Answers:
    """Commands that only brokers send, sent by a client."""
    answers: Answers = {}
    for kind, fields in (
        (Type.TOPIC_MIGRATED, {"resource_id": 1, "resource_type": wire.CommandTopicMigrated.Producer}),
        (Type.AUTH_RESPONSE, {}),
        (Type.AUTH_CHALLENGE, {}),
        (Type.REACHED_END_OF_TOPIC, {"consumer_id": 1}),
        (Type.SUCCESS, {"request_id": 4}),
        (Type.WATCH_TOPIC_UPDATE, {"watcher_id": 1, "topics_hash": ""}),
    ):
        with WireClient(place.service_url) as client:
            client.send(kind, **fields)
            try:
                client.fence()
            except ConnectionEndedError:
                answers[Type.Type.Name(kind)] = "the connection ends"
            else:
                answers[Type.Type.Name(kind)] = "ignored"
    return answers
