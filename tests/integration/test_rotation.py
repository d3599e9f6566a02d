"""Everything that secures a broker is replaced under load, and official clients go on: nothing is lost or repeated.

The clients send and receive all the time, by TLS and with tokens that are valid for a few seconds, while tokens are
renewed, the signing key and the certificate are replaced, and the broker is restarted.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import pulsar
import pytest
from cryptography import x509
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.clients import fresh_name, receive_or_none
from tests.support.polling import eventually
from tests.support.tls_broker import TlsBroker, frames_of
from tests.support.tokens import CHECK_EVERY_S, SHORT_S, Signer, Signing, ask
from tests.support.wire_client import Type, encode

ADMIN, ROLE = "admin", "billing"
KEYS = 5
#: How long consumers wait for a message until they check whether they are to end.
QUIET_MS = 200
#: Messages of the batches of the second producer.
BATCH = 10


class Sent(NamedTuple):
    """A message: its producer, and its number among that one's."""

    producer: str
    number: int

    @classmethod
    def of(cls, message: pulsar.Message) -> Self:
        producer, number = message.data().decode().split()
        return cls(producer, int(number))


class Keys:
    """The two files that a broker trusts keys of, which hold the same key but for the time of a rotation."""

    def __init__(self, directory: Path) -> None:
        self.files = [directory / "first.key", directory / "second.key"]
        self.signer = Signer(directory / "signing.key", b"the secret that the tokens of the beginning are signed with")
        self._next = directory / "next.key"
        for file in self.files:
            file.write_bytes(self.signer.path.read_bytes())

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a broker that trusts these keys, and soon asks for tokens that end to be renewed."""
        return {
            "HELIOGRAPH_AUTH": "token",
            "HELIOGRAPH_TOKEN_SECRET_KEY": ",".join(map(str, self.files)),
            "HELIOGRAPH_SUPERUSERS": ADMIN,
            "HELIOGRAPH_AUTH_REFRESH_CHECK_S": str(CHECK_EVERY_S),
        }

    def add(self, secret: bytes) -> Signer:
        """Let the broker trust another key as well, and return what signs with it."""
        added = Signer(self._next, secret)
        self._replace(self.files[1])
        return added

    def remove(self) -> None:
        """Take the key away that was there first."""
        self._replace(self.files[0])

    def _replace(self, file: Path) -> None:
        written = file.with_suffix(".new")
        written.write_bytes(self._next.read_bytes())
        written.rename(file)


class Worker(threading.Thread):
    """Does ``work`` again and again until it is stopped; an exception ends it and is raised by :meth:`finish`."""

    def __init__(self, work: Callable[[], None], *, until: Callable[[], bool] = lambda: True) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._until = until
        self._stopped = threading.Event()
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            while not (self._stopped.is_set() and self._until()):
                self._work()
        except Exception as error:
            self.failure = error

    def finish(self, *, within_s: float = 60.0) -> None:
        """Stop once ``until`` holds. Raises what ended it, or :class:`AssertionError` if it does not end in time."""
        self._stopped.set()
        self.join(within_s)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive(), "a worker did not end"


class Load:
    """Two producers, a consumer, a reader and two consumers that share keys, each with a client of its own."""

    def __init__(self, broker: TlsBroker, topic: str, signer: Signing) -> None:
        self.signer = signer
        self.broker = broker
        self.topic = topic
        #: How many tokens each client has asked for since the last call of :meth:`sign_with`.
        self._asked: list[int] = []
        self._clients: list[pulsar.Client] = []
        #: What the broker has confirmed, by producer.
        self.confirmed: dict[str, list[int]] = {"single": [], "batch": []}
        #: What the consumer, both consumers of the keys, and the reader have received.
        self.alone: list[Sent] = []
        self.shared: list[Sent] = []
        self.read: list[Sent] = []
        self.producers: list[Worker] = []
        self.consumers: list[Worker] = []
        self._start()

    def client(self) -> pulsar.Client:
        """Return a client whose supplier of tokens is counted."""
        number = len(self._asked)
        self._asked.append(0)

        def supply() -> str:
            self._asked[number] += 1
            return self.signer.token(ROLE, expires_in_s=SHORT_S)

        client = self.broker.connect(authentication=pulsar.AuthenticationToken(supply))
        self._clients.append(client)
        return client

    def sign_with(self, signer: Signing) -> None:
        """Supply tokens of another key from now on."""
        self.signer = signer
        self._asked = [0] * len(self._asked)

    def all_have_renewed(self, times: int = 1) -> bool:
        """Whether every client has asked for so many tokens since the last change of the key."""
        return min(self._asked) >= times

    def _start(self) -> None:
        self._receive("alone", pulsar.ConsumerType.Exclusive, self.alone)
        for _ in range(2):
            self._receive("shared", pulsar.ConsumerType.KeyShared, self.shared)
        self._read()
        self._produce_singly()
        self._produce_batches()
        for worker in (*self.consumers, *self.producers):
            worker.start()

    def _receive(self, subscription: str, kind: pulsar.ConsumerType, received: list[Sent]) -> None:
        consumer = self.client().subscribe(self.topic, subscription, consumer_type=kind)

        def work() -> None:
            if (message := receive_or_none(consumer, QUIET_MS)) is not None:
                received.append(Sent.of(message))
                consumer.acknowledge(message)

        self.consumers.append(Worker(work, until=lambda: self._complete(received)))

    def _read(self) -> None:
        reader = self.client().create_reader(self.topic, pulsar.MessageId.earliest)

        def work() -> None:
            with suppress(pulsar.Timeout):
                self.read.append(Sent.of(reader.read_next(QUIET_MS)))

        self.consumers.append(Worker(work, until=lambda: self._complete(self.read)))

    def _complete(self, received: list[Sent]) -> bool:
        return len(set(received)) >= sum(map(len, self.confirmed.values()))

    def _produce_singly(self) -> None:
        producer = self.client().create_producer(self.topic, producer_name="single", send_timeout_millis=0)
        numbers = iter(range(1 << 30))

        def work() -> None:
            number = next(numbers)
            producer.send(b"single %d" % number, partition_key=f"k{number % KEYS}")
            self.confirmed["single"].append(number)

        self.producers.append(Worker(work))

    def _produce_batches(self) -> None:
        producer = self.client().create_producer(
            self.topic, producer_name="batch", send_timeout_millis=0, batching_enabled=True,
            batching_type=pulsar.BatchingType.KeyBased,
        )  # fmt: skip
        numbers = iter(range(1 << 30))
        results: list[Any] = []

        def work() -> None:
            batch = [next(numbers) for _ in range(BATCH)]
            results.clear()
            for number in batch:
                key = f"k{number % KEYS}"
                producer.send_async(b"batch %d" % number, lambda result, _: results.append(result), partition_key=key)
            producer.flush()
            eventually(lambda: len(results) == BATCH, what="receipts of a batch")
            assert results == [pulsar.Result.Ok] * BATCH
            self.confirmed["batch"] += batch

        self.producers.append(Worker(work))

    def has_confirmed_more_than(self, before: dict[str, int]) -> bool:
        """Whether both producers have gone on for a while."""
        return all(len(numbers) > before[name] + 5 * BATCH for name, numbers in self.confirmed.items())

    def check(self) -> None:
        """Raise what a worker ended with, if one did."""
        for worker in (*self.producers, *self.consumers):
            if worker.failure is not None:
                raise worker.failure

    def finish(self) -> None:
        """Stop the producers, wait until everything is received, and close the clients."""
        try:
            for worker in (*self.producers, *self.consumers):
                worker.finish()
        finally:
            for client in self._clients:
                client.close()


@contextmanager
def under_load(broker: TlsBroker, topic: str, signer: Signing) -> Iterator[Load]:
    """Run the load for the time of the block, and until all of it is received."""
    load = Load(broker, topic, signer)
    try:
        yield load
    finally:
        load.finish()


def answer_to(broker: TlsBroker, token: str) -> Any:
    """Return what the broker answers to CONNECT of a new connection."""
    with broker.encrypted() as connection:
        connection.sendall(
            encode(
                Type.CONNECT,
                client_version="test",
                protocol_version=21,
                auth_method_name="token",
                auth_data=token.encode(),
            )
        )
        return next(frames_of(connection))


def trusts(broker: TlsBroker, signer: Signing) -> bool:
    answer = answer_to(broker, signer.token(ROLE, expires_in_s=60))
    assert answer.command.type in (Type.CONNECTED, Type.ERROR)
    if answer.command.type == Type.ERROR:
        assert answer.body.error == wire.AuthenticationError
        assert "not signed by a key that this broker trusts" in answer.body.message
    return bool(answer.command.type == Type.CONNECTED)


def serial_shown(broker: TlsBroker) -> int:
    """Return the serial number of the certificate that new connections see."""
    with broker.encrypted() as connection:
        der = connection.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der).serial_number


def connected_since(broker: TlsBroker, topic: str, signer: Signer) -> list[str]:
    """Return when each producer and consumer has connected."""
    url = f"{broker.process.https_url}/admin/v2/{topic.replace('://', '/')}/stats"
    stats = ask(url, signer.token(ADMIN), context=broker.context()).body
    consumers = [each for subscription in stats["subscriptions"].values() for each in subscription["consumers"]]
    assert len(stats["publishers"]) == 2
    assert len(consumers) == 4
    return sorted(each["connectedSince"] for each in (*stats["publishers"], *consumers))


def by_key(messages: list[Sent]) -> dict[tuple[str, int], list[int]]:
    """Return the numbers of messages by their producers and keys."""
    found: dict[tuple[str, int], list[int]] = {}
    for producer, number in messages:
        found.setdefault((producer, number % KEYS), []).append(number)
    return found


def repeated_ones(messages: list[Sent]) -> set[Sent]:
    return {message for message, times in Counter(messages).items() if times > 1}


def first_ones(messages: list[Sent]) -> list[Sent]:
    return list(dict.fromkeys(messages))


def prepare(broker: TlsBroker, signer: Signer) -> None:
    """Let the role produce and consume, and producers send again what a restart left without a receipt."""
    for path, body in (("deduplication", True), (f"permissions/{ROLE}", ["produce", "consume"])):
        url = f"{broker.process.https_url}/admin/v2/namespaces/public/default/{path}"
        answer = ask(url, signer.token(ADMIN), "POST", body, context=broker.context())
        assert answer.status == 204, answer


@pytest.mark.timeout(180)
def test_tokens_keys_and_certificates_are_replaced_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    topic = f"persistent://public/default/{fresh_name('rotation')}"
    keys = Keys(tmp_path)
    old = keys.signer
    with TlsBroker(tmp_path / "broker", "--tls-only", environment=keys.environment) as broker:
        prepare(broker, old)
        with under_load(broker, topic, old) as load:
            since = connected_since(broker, topic, old)
            # A token for CONNECT, and one that is asked for on the open connection.
            eventually(lambda: load.all_have_renewed(2), what="renewal of all tokens")

            renewed = broker.authority.issue()
            broker.replace(renewed)
            new = keys.add(b"the secret that tokens are signed with after the rotation of keys")
            eventually(lambda: trusts(broker, new), what="the new key")
            load.sign_with(new)
            eventually(load.all_have_renewed, what="tokens of the new key")
            keys.remove()
            eventually(lambda: not trusts(broker, old), what="the end of the old key")
            load.sign_with(new)
            eventually(load.all_have_renewed, what="tokens that are asked for because a key was removed")

            eventually(lambda: serial_shown(broker) == renewed.parsed.serial_number, what="the new certificate")
            load.check()
            # All that was on the connections of the beginning.
            assert connected_since(broker, topic, new) == since

            broker.process.restart()
            before_restart = {name: len(numbers) for name, numbers in load.confirmed.items()}
            load.sign_with(new)
            eventually(lambda: load.all_have_renewed(2), what="renewal after the restart")
            eventually(lambda: load.has_confirmed_more_than(before_restart), what="messages after the restart")
            load.check()
        in_order(load)
        # A consumer may get again what it had not acknowledged when the broker ended, and nothing else.
        for message in repeated_ones(load.alone) | repeated_ones(load.shared):
            assert message.number < before_restart[message.producer] + BATCH


def in_order(load: Load) -> None:
    """Assert that what is confirmed came to each subscription in order by producer or key, and to the reader once."""
    for numbers in load.confirmed.values():
        assert numbers == list(range(len(numbers)))
    sent = {(name, key): numbers[key::KEYS] for name, numbers in load.confirmed.items() for key in range(KEYS)}
    single = load.confirmed["single"]
    for received in (load.alone, load.shared, load.read):
        assert by_key(first_ones(received)) == sent
    for received in (load.alone, load.read):
        assert [number for producer, number in first_ones(received) if producer == "single"] == single
    assert first_ones(load.read) == load.read
