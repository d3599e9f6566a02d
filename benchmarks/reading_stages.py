"""Processor time of a message on one split: the steps of reading one after the other, and then all of it in Spark.

Each step does what the one before it does and one thing more, so the difference is what that costs.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.encoder import encode_command
from heliograph_spark.plan.options import read_options
from heliograph_spark.plan.positions import BEGINNING
from heliograph_spark.plan.ranges import Range
from heliograph_spark.run.decoding import entry_columns
from heliograph_spark.run.reading import read_range
from heliograph_spark.run.schemas import RAW, columns_of
from heliograph_spark.run.session import SessionOptions, build_session
from heliograph_spark.wire.brokers import Brokers
from heliograph_spark.wire.entry_reader import EARLIEST, EntryReader

from tests.support.broker_process import BrokerProcess

from .client_readers import WAITS_S, brokers_of, read_frames, subscribe_from_earliest
from .kept_topics import Shape
from .processor_time import by_part, processor_s
from .read_requests import Request
from .spark_reader import read as read_with_spark

_Type = wire.BaseCommand
_READ_BYTES = 256 << 10
#: After this time (s) without a byte there is none left; it takes no processor time.
_QUIET_S = 2.0


@dataclass(frozen=True, slots=True)
class Took:
    """Time of a reading, in microseconds of a message: of the clock, of this process and of the broker."""

    clock_us: float
    own_us: float
    broker_us: float


def receive_bytes(service_url: str, request: Request) -> int:
    """Receive everything after all permits were granted at once, and look at no frame; return the number of bytes."""
    address = urlsplit(service_url)
    connect = _Type(type=_Type.CONNECT, connect=wire.CommandConnect(client_version="reading", protocol_version=21))
    subscribe = _Type(type=_Type.SUBSCRIBE, subscribe=subscribe_from_earliest(request.topic, 1))
    subscribe.subscribe.request_id = 1
    flow = _Type(type=_Type.FLOW, flow=wire.CommandFlow(consumer_id=1, messagePermits=request.messages))
    size = 0
    with socket.create_connection((address.hostname or "", address.port or 6650), timeout=_QUIET_S) as made:
        for command in (connect, subscribe):
            made.sendall(encode_command(command))
            made.recv(_READ_BYTES)
        made.sendall(encode_command(flow))
        with suppress(TimeoutError):
            while data := made.recv(_READ_BYTES):
                size += len(data)
    return size


def read_entries(brokers: Brokers, request: Request) -> int:
    """Read with checksums and metadata; return the number of messages."""
    messages = 0
    with EntryReader(brokers, request.topic, EARLIEST) as reader:
        while messages < request.messages and (entries := reader.read(WAITS_S)):
            messages += sum(each.messages for each in entries)
    return messages


def read_columns(brokers: Brokers, urls: dict[str, str], request: Request) -> Iterator[pa.RecordBatch]:
    """Yield the messages as Spark's task gets them."""
    with EntryReader(brokers, request.topic, EARLIEST) as reader:
        end = reader.last_position()
    assert end is not None
    options = read_options({**urls, "topic": request.topic}, streaming=False)
    columns = entry_columns(brokers, request.topic, columns_of(RAW, request.topic), RAW)
    return read_range(brokers, Range(request.topic, BEGINNING, end), options, columns)


def write_arrow(batches: Iterator[pa.RecordBatch]) -> int:
    """Write columns into a pipe, as Spark's worker does into its socket; return the number of rows."""
    rows = 0
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        writer = None
        for batch in batches:
            writer = writer or pa.ipc.new_stream(reader.stdin, batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    return rows


def measure(broker: BrokerProcess, messages: int, runs: int, read: Callable[[], int]) -> Took:
    """Return the medians of some readings. Raises :class:`RuntimeError` if one has not read every message."""
    taken = []
    for run in range(runs + 1):
        brokers_cpu, own, began = processor_s(broker.pid), time.process_time(), time.monotonic()
        count = read()
        clock, own = time.monotonic() - began, time.process_time() - own
        if count != messages:
            raise RuntimeError(f"{count} of {messages} messages")
        # The first one has Python's imports in it.
        if run:
            taken.append((clock, own, processor_s(broker.pid) - brokers_cpu))
    return Took(*(statistics.median(each) / messages * 1e6 for each in zip(*taken, strict=True)))


def print_stages(broker: BrokerProcess, shape: Shape, runs: int) -> None:
    """Print the table of the steps outside Spark, and that of the processes of a query in Spark."""
    request = shape.request(1)
    brokers = brokers_of(broker.service_url)
    urls = {"service.url": broker.service_url, "admin.url": broker.http_url}

    def received() -> int:
        # A message has more bytes than its payload; what is missing shows in the next step.
        return request.messages * (receive_bytes(broker.service_url, request) > request.messages * shape.payload)

    steps: list[tuple[str, Callable[[], int]]] = [
        ("bytes from the socket", received),
        ("frames and their commands", lambda: read_frames(brokers, request).messages),
        ("checksum and metadata of the entry", lambda: read_entries(brokers, request)),
        ("columns", lambda: sum(each.num_rows for each in read_columns(brokers, urls, request))),
        ("Arrow's stream into a pipe", lambda: write_arrow(read_columns(brokers, urls, request))),
    ]
    print(
        f"| {shape.name} | CPU µs a message | of it this step | broker's CPU | clock |\n|---|---|---|---|---|",
        flush=True,
    )
    before = 0.0
    for name, read in steps:
        took = measure(broker, request.messages, runs, read)
        quiet_us = _QUIET_S / request.messages * 1e6 if read is received else 0.0
        clock_us = took.clock_us - quiet_us
        step_us = took.own_us - before
        print(f"| {name} | {took.own_us:.2f} | {step_us:.2f} | {took.broker_us:.2f} | {clock_us:.2f} |", flush=True)
        before = took.own_us
    brokers.close()
    print_spark(broker, request, runs)


def print_spark(broker: BrokerProcess, request: Request, runs: int) -> None:
    """Print what a query of Spark takes, by process and thread."""
    spark = build_session("stages", SessionOptions(master="local[2]", conf={"spark.ui.enabled": "false"}))
    here = psutil.Process()

    def read() -> float:
        reading = read_with_spark(spark, broker.service_url, broker.http_url, request, connector=False)
        if reading.messages != request.messages:
            raise RuntimeError(f"{reading} of {request}")
        return reading.whole_s

    read()
    parts, brokers_cpu = by_part(here), processor_s(broker.pid)
    clock_s = sum(read() for _ in range(runs))
    took = by_part(here)
    took = {part: used_s - parts.get(part, 0.0) for part, used_s in took.items()}
    took["broker"] = processor_s(broker.pid) - brokers_cpu
    print("\n| in Spark, one split | µs a message |\n|---|---|")
    for part, used_s in [*sorted(took.items()), ("the clock", clock_s)]:
        print(f"| {part} | {used_s / runs / request.messages * 1e6:.2f} |", flush=True)
    print(flush=True)
    spark.stop()
