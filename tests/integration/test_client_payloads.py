"""Payloads pass untouched: compressed, batched, chunked, encrypted."""

from __future__ import annotations

import random
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.clients import (
    DEADLINE_MS,
    RunningBroker,
    backlog,
    ignore_receipt,
    payloads,
    receive_many,
    receive_or_none,
    stats,
)
from tests.support.polling import eventually

MIB = 1024 * 1024


def sample_payloads() -> list[bytes]:
    """Payloads that compress well, badly and not at all, of sizes around the ends."""
    source = random.Random(7)
    return [
        b"x",
        b"abc" * 10_000,
        source.randbytes(1000),
        source.randbytes(100_000),
        bytes(range(256)) * 40,
    ]


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_payloads_arrive_byte_for_byte(
    client: pulsar.Client, topic: str, compression: str, batching: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic,
        compression_type=pulsar.CompressionType.__members__[compression],
        batching_enabled=batching,
        batching_max_publish_delay_ms=100,
    )
    sent = sample_payloads()
    for payload in sent:
        producer.send_async(payload, ignore_receipt)
    producer.flush()
    assert payloads(receive_many(consumer, len(sent))) == sent


def test_message_just_below_the_limit(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payload = random.Random(1).randbytes(5 * MIB - 1024)
    client.create_producer(topic).send(payload)
    assert consumer.receive(DEADLINE_MS).data() == payload


def test_message_above_the_limit_is_refused_and_the_producer_lives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * MIB + 1))
    producer.send(b"small")
    assert consumer.receive(DEADLINE_MS).data() == b"small"


def test_compression_brings_a_large_message_under_the_limit(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payload = bytes(20 * MIB)
    client.create_producer(topic, compression_type=pulsar.CompressionType.ZSTD).send(payload)
    assert consumer.receive(DEADLINE_MS).data() == payload


def test_chunked_message_of_20_mib(client: pulsar.Client, broker: RunningBroker, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = random.Random(2).randbytes(20 * MIB)
    producer.send(b"before")
    producer.send(payload, properties={"size": str(len(payload))})
    producer.send(b"after")
    messages = receive_many(consumer, 3)
    assert payloads(messages) == [b"before", payload, b"after"]
    assert messages[1].properties() == {"size": str(len(payload))}
    eventually(lambda: backlog(broker, topic, "s") == 0, what="every chunk acknowledged")
    assert stats(broker, topic)["bytesInCounter"] > len(payload)


def test_chunked_messages_of_two_producers_interwoven(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, chunking_enabled=True) for _ in range(2)]
    sent = [random.Random(seed).randbytes(11 * MIB) for seed in range(2)]
    for producer, payload in zip(producers, sent, strict=True):
        producer.send_async(payload, ignore_receipt)
    for producer in producers:
        producer.flush()
    assert sorted(payloads(receive_many(consumer, 2))) == sorted(sent)


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared])
def test_chunked_messages_come_whole_to_one_of_several_consumers(
    broker: RunningBroker, client: pulsar.Client, topic: str, kind: pulsar.ConsumerType
) -> None:
    sent = [random.Random(seed).randbytes(11 * MIB) for seed in range(3)]
    others = [pulsar.Client(broker.service_url) for _ in range(2)]
    try:
        consumers = [each.subscribe(topic, "s", kind) for each in others]
        producers = [client.create_producer(topic, chunking_enabled=True) for _ in sent]
        for producer, payload in zip(producers, sent, strict=True):
            producer.send_async(payload, ignore_receipt)
        for producer in producers:
            producer.flush()
        received: list[bytes] = []

        def whole() -> bool:
            for consumer in consumers:
                message = receive_or_none(consumer, 200)
                if message is not None:
                    received.append(message.data())
                    consumer.acknowledge(message)
            return len(received) >= len(sent)

        eventually(whole, what="all messages to come whole")
        assert sorted(received) == sorted(sent)
        eventually(lambda: backlog(broker, topic, "s") == 0, what="every chunk acknowledged")
    finally:
        for each in others:
            each.close()


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An RSA key pair as PEM files: public, private."""
    folder = tmp_path_factory.mktemp("keys")
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public_path, private_path = folder / "public.pem", folder / "private.pem"
    public_path.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private_path.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return public_path, private_path


@pytest.mark.parametrize("batching", [False, True], ids=["unbatched", "batched"])
def test_encrypted_messages_are_read_by_who_has_the_key(
    client: pulsar.Client, topic: str, key_files: tuple[Path, Path], batching: bool
) -> None:
    reader = pulsar.CryptoKeyReader(str(key_files[0]), str(key_files[1]))
    with_key = client.subscribe(topic, "with", crypto_key_reader=reader)
    without_key = client.subscribe(topic, "without", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME)
    producer = client.create_producer(
        topic,
        encryption_key="the-key",
        crypto_key_reader=reader,
        batching_enabled=batching,
        compression_type=pulsar.CompressionType.LZ4,
    )
    sent = [b"secret %d" % i for i in range(10)]
    for payload in sent:
        producer.send_async(payload, ignore_receipt, properties={"plain": "1"})
    producer.flush()
    assert payloads(receive_many(with_key, len(sent))) == sent
    sealed = without_key.receive(DEADLINE_MS)
    context = sealed.encryption_context()
    assert context is not None
    [key] = context.keys()
    assert key.key == "the-key"
    assert b"secret" not in sealed.data()


def test_encrypted_message_is_not_delivered_to_who_fails_to_decrypt(
    client: pulsar.Client, topic: str, key_files: tuple[Path, Path]
) -> None:
    reader = pulsar.CryptoKeyReader(str(key_files[0]), str(key_files[1]))
    blind = client.subscribe(topic, "blind")
    client.create_producer(topic, encryption_key="k", crypto_key_reader=reader).send(b"secret")
    client.create_producer(topic).send(b"plain")
    assert blind.receive(DEADLINE_MS).data() == b"plain"
    assert receive_or_none(blind, 100) is None
