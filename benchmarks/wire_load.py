"""A load generator that costs little more than the frames themselves: raw protocol on uvloop, one process.

Receipts are recognised by their type byte and counted; MESSAGE commands are decoded for their ids, which are
acknowledged individually, many to a command, as the official clients do. Run as a process of its own:
``python -m benchmarks.wire_load '{json of WireJob}'`` prints the JSON of a :class:`WireResult`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop
from crc32c import crc32c
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command, encode_command_with_entry
from heliograph_api.protocol.frames import MAGIC_CRC32C

Type = wire.BaseCommand
_RECEIPT, _MESSAGE = int(Type.SEND_RECEIPT), int(Type.MESSAGE)
#: Ids in one ACK, and permits granted at a time, as the official clients' defaults.
ACK_GROUP = 1000
PERMITS = 1000
ENDS_WITHIN_S = 180.0
_STAMP = struct.Struct(">Q")


class WireJob(msgspec.Struct):
    """``rate`` 0 publishes as fast as ``window`` entries without a receipt allow; else entries a second."""

    service_url: str
    topic: str
    payload_bytes: int
    messages: int
    batch: int = 1
    window: int = 1000
    consume: bool = True
    rate: float = 0.0
    #: For a broker with authentication.
    token: str = ""
    #: The authorities (PEM file) that a broker with TLS is verified by.
    trusted: str = ""


class WireResult(msgspec.Struct):
    """Seconds and messages; latencies (milliseconds, one a message in order) only at a fixed rate.

    ``began`` is by the machine's monotonic clock, which all its processes share.
    """

    messages: int
    began: float
    publish_s: float
    end_to_end_s: float
    cpu_s: float
    publish_ms: list[float]
    end_to_end_ms: list[float]


def make_batched_entry(payload_bytes: int, batch: int) -> bytes:
    """Return an entry of ``batch`` messages as a client publishes it, not compressed."""
    metadata = wire.MessageMetadata(producer_name="load", sequence_id=0, publish_time=int(time.time() * 1000))
    payload = bytes(payload_bytes)
    if batch > 1:
        metadata.num_messages_in_batch = batch
        single = wire.SingleMessageMetadata(payload_size=payload_bytes).SerializeToString()
        payload = (struct.pack(">I", len(single)) + single + payload) * batch
    return _framed(metadata.SerializeToString(), payload)


def _framed(head: bytes, payload: bytes) -> bytes:
    body = struct.pack(">I", len(head)) + head + payload
    return struct.pack(">HI", MAGIC_CRC32C, crc32c(body)) + body


class Connection(asyncio.Protocol):
    """One connection: counts receipts and messages, hands other commands to ``answers``."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[wire.BaseCommand] = asyncio.Queue()
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.ended.done():
            self.ended.set_exception(ConnectionError("the broker ended the connection"))

    def write(self, data: list[bytes]) -> None:
        if self._transport is not None:
            self._transport.writelines(data)

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(True)
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at, end = 0, len(buffer)
        receipts = 0
        messages: list[tuple[bytes, int, int]] = []
        while end - at >= 4:
            total = int.from_bytes(buffer[at : at + 4], "big")
            after = at + 4 + total
            if after > end:
                break
            # Every command begins with its type, which is field 1 and below 128 for these.
            kind = buffer[at + 9]
            if kind == _RECEIPT:
                receipts += 1
            elif kind == _MESSAGE:
                messages.append((buffer, at, after))
            else:
                size = int.from_bytes(buffer[at + 4 : at + 8], "big")
                self.answers.put_nowait(Type.FromString(buffer[at + 8 : at + 8 + size]))
            at = after
        self._buffer = buffer[at:]
        if receipts:
            self.receipted(receipts)
        if messages:
            self.delivered(messages)

    def receipted(self, count: int) -> None:
        raise NotImplementedError

    def delivered(self, messages: list[tuple[bytes, int, int]]) -> None:
        raise NotImplementedError

    async def opened(self, *commands: wire.BaseCommand, token: str = "") -> None:
        """Send commands one after the other, each when the one before was answered."""
        connect = wire.CommandConnect(client_version="load", protocol_version=21)
        if token:
            connect.auth_method_name, connect.auth_data = "token", token.encode()
        for command in (Type(type=Type.CONNECT, connect=connect), *commands):
            self.write([encode_command(command)])
            async with asyncio.timeout(10):
                answer = await self.answers.get()
            if answer.type == Type.ERROR:
                raise RuntimeError(f"the broker refused: {answer.error.message}")


class Publisher(Connection):
    """Publishes the job's entries, the window always full or at the rate."""

    def __init__(self, job: WireJob) -> None:
        super().__init__()
        self._job = job
        self._entries = job.messages // job.batch
        self._entry = make_batched_entry(job.payload_bytes, job.batch)
        self._sent = 0
        self._receipts = 0
        self._send = Type(type=Type.SEND)
        self._send.send.producer_id = 1
        self._send.send.num_messages = job.batch
        self._sent_at: deque[float] = deque()
        self.latencies_ms: list[float] = []
        self.began = 0.0
        self.finished = 0.0
        self.done = asyncio.Event()

    def start(self) -> None:
        self.began = time.monotonic()
        if self._job.rate:
            self._tick()
        else:
            self._publish(self._job.window)

    def _publish(self, count: int) -> None:
        count = min(count, self._entries - self._sent)
        send = self._send
        out: list[bytes] = []
        for sequence_id in range(self._sent, self._sent + count):
            send.send.sequence_id = sequence_id
            out.append(encode_command_with_entry(send, len(self._entry)))
            out.append(self._entry)
        self._sent += count
        if out:
            self.write(out)

    def _tick(self) -> None:
        """Send what is due by the clock, whatever came back so far."""
        due = min(int((time.monotonic() - self.began) * self._job.rate) + 1, self._entries)
        while self._sent < due:
            now = time.monotonic()
            metadata = wire.MessageMetadata(producer_name="load", sequence_id=self._sent, publish_time=0)
            payload = _STAMP.pack(int(now * 1e9)).ljust(self._job.payload_bytes, b"\0")
            entry = _framed(metadata.SerializeToString(), payload)
            self._send.send.sequence_id = self._sent
            self._sent += 1
            self._sent_at.append(now)
            self.write([encode_command_with_entry(self._send, len(entry)), entry])
        if self._sent < self._entries:
            asyncio.get_running_loop().call_at(asyncio.get_running_loop().time() + 0.0005, self._tick)

    def receipted(self, count: int) -> None:
        self._receipts += count
        if self._job.rate:
            now = time.monotonic()
            self.latencies_ms.extend((now - self._sent_at.popleft()) * 1000 for _ in range(count))
        else:
            self._publish(count)
        if self._receipts == self._entries:
            self.finished = time.monotonic()
            self.done.set()


class Consumer(Connection):
    """Receives and acknowledges everything."""

    def __init__(self, job: WireJob) -> None:
        super().__init__()
        self._job = job
        self._received = 0
        self._to_grant = 0
        self._ack = Type(type=Type.ACK)
        self._ack.ack.consumer_id = 1
        self._ack.ack.ack_type = wire.CommandAck.Individual
        self._flow = Type(type=Type.FLOW)
        self._flow.flow.consumer_id = 1
        # Enough for several groups of batches: the consumer shall not be what waits.
        self._permits = max(PERMITS, 20 * job.batch)
        self.latencies_ms: list[float] = []
        self.finished = 0.0
        self.done = asyncio.Event()

    def start(self) -> None:
        self._grant(self._permits)

    def _grant(self, permits: int) -> None:
        self._flow.flow.messagePermits = permits
        self.write([encode_command(self._flow)])

    def delivered(self, messages: list[tuple[bytes, int, int]]) -> None:
        job = self._job
        ids = self._ack.ack.message_id
        now = time.monotonic()
        for buffer, at, after in messages:
            size = int.from_bytes(buffer[at + 4 : at + 8], "big")
            ids.append(Type.FromString(buffer[at + 8 : at + 8 + size]).message.message_id)
            if job.rate:
                start = after - job.payload_bytes
                self.latencies_ms.append(now * 1000 - _STAMP.unpack_from(buffer, start)[0] / 1e6)
        count = len(messages) * job.batch
        self._received += count
        self._to_grant += count
        last = self._received >= job.messages
        if len(ids) >= ACK_GROUP // min(job.batch, 100) or last:
            self.write([encode_command(self._ack)])
            del ids[:]
        if self._to_grant >= self._permits // 2:
            self._grant(self._to_grant)
            self._to_grant = 0
        if last:
            self.finished = time.monotonic()
            self.done.set()


async def _finished(done: asyncio.Event, *connections: Connection) -> None:
    """Wait for ``done``, or raise what ended one of the connections before."""
    waiting: asyncio.Future[bool] = asyncio.ensure_future(done.wait())
    ended = [asyncio.ensure_future(each.ended) for each in connections]
    await asyncio.wait([waiting, *ended], return_when=asyncio.FIRST_COMPLETED)
    for each in connections:
        if each.ended.done():
            each.ended.result()


async def run(job: WireJob) -> WireResult:
    """Do the job. Raises :class:`TimeoutError` if it takes too long, ConnectionError if the broker goes."""
    loop = asyncio.get_running_loop()
    address = urlsplit(job.service_url)
    assert address.hostname is not None
    assert address.port is not None
    encryption = ssl.create_default_context(cafile=job.trusted) if job.trusted else None
    subscribe = wire.CommandSubscribe(
        topic=job.topic,
        subscription="load",
        subType=wire.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=1,
        initialPosition=wire.CommandSubscribe.Earliest,
    )
    _, consumer = await loop.create_connection(lambda: Consumer(job), address.hostname, address.port, ssl=encryption)
    # A job that only publishes leaves a backlog: without a subscription its ledgers would go as they are closed.
    await consumer.opened(Type(type=Type.SUBSCRIBE, subscribe=subscribe), token=job.token)
    _, publisher = await loop.create_connection(lambda: Publisher(job), address.hostname, address.port, ssl=encryption)
    producer = wire.CommandProducer(topic=job.topic, producer_id=1, request_id=1)
    await publisher.opened(Type(type=Type.PRODUCER, producer=producer), token=job.token)
    cpu = time.process_time()
    if job.consume:
        consumer.start()
    publisher.start()
    async with asyncio.timeout(ENDS_WITHIN_S):
        ends = [publisher.done, *([consumer.done] if job.consume else [])]
        await asyncio.gather(*(_finished(done, publisher, consumer) for done in ends))
    result = WireResult(
        messages=job.messages,
        began=publisher.began,
        publish_s=publisher.finished - publisher.began,
        end_to_end_s=consumer.finished - publisher.began if job.consume else 0.0,
        cpu_s=time.process_time() - cpu,
        publish_ms=publisher.latencies_ms,
        end_to_end_ms=consumer.latencies_ms,
    )
    publisher.close()
    consumer.close()
    return result


if __name__ == "__main__":
    result = msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.argv[1], type=WireJob))))
    # With PYTHONUNBUFFERED set, print() writes once, and uvloop's work for the kernel can cut that short.
    with open(sys.stdout.fileno(), "wb", closefd=False) as output:
        output.write(result)
