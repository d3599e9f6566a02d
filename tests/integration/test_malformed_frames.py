"""Whatever bytes one connection sends, the broker lives on, other connections notice nothing and no data suffers."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import parse_entry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.wire_client import Frame, Type, WireClient, encode, payload_of, take_frames
from tests.support.wire_specimens import CONNECT, OPENING, PRODUCER_ID, SPECIMENS, flip, with_extreme_fields

ENDS_WITHIN_S = 60.0
#: A healthy producer and consumer exchange a message once in so many cases.
BEAT_EVERY = 50
U32 = st.integers(0, 0xFFFFFFFF)
SPECIMEN = st.sampled_from(sorted(SPECIMENS))


def cases(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        # The broker's process is the fixture, shared by all cases on purpose.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )


class Victim:
    """The broker under attack, and the innocent pair of clients that must not notice."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.cases = 0
        self.sent: list[bytes] = []
        self.connect()

    def connect(self) -> None:
        """Connect the innocent pair to the broker's present life."""
        broker = self.broker
        self.pid = broker.pid
        self._publisher = WireClient(broker.service_url)
        self._reader = WireClient(broker.service_url)
        self._consumer = self._reader.subscribe("healthy", "read")
        keeper = WireClient(broker.service_url)
        keeper.subscribe("healthy", "kept")
        keeper.close()
        self._producer = self._publisher.producer("healthy")
        self._reader.flow(self._consumer, 1_000_000)

    def close(self) -> None:
        self._publisher.close()
        self._reader.close()

    def beat(self) -> None:
        """One message goes through: published, received, acknowledged."""
        payload = b"beat %d" % len(self.sent)
        self._publisher.publish(self._producer, make_entry(payload, sequence_id=len(self.sent)))
        self.sent.append(payload)
        (frame,) = self._reader.messages(1)
        assert payload_of(frame) == payload
        assert not self._reader.ack(self._consumer, frame.body.message_id).HasField("error")

    def attack(self, data: bytes, *, ends_itself: bool = False) -> list[Frame]:
        """Send ``data`` on a connection of its own and return everything the broker answers until the end.

        Our side is closed after the data unless ``ends_itself``: then the broker must end the connection.
        """
        self.cases += 1
        address = urlsplit(self.broker.service_url)
        answer = bytearray()
        with socket.create_connection((address.hostname or "", address.port or 0), ENDS_WITHIN_S) as connection:
            # An error here: the broker ended it while we were sending. What it answered can be read all the same.
            with contextlib.suppress(OSError):
                connection.sendall(data)
                if not ends_itself:
                    connection.shutdown(socket.SHUT_WR)
            try:
                while chunk := connection.recv(1 << 16):
                    answer += chunk
            except ConnectionError:
                pass  # Bytes it had not read make the end a reset.
            except TimeoutError:
                raise AssertionError(f"the connection did not end within {ENDS_WITHIN_S} s of {data.hex()}") from None
        if self.cases % BEAT_EVERY == 0:
            self.beat()
        # A last one cut short by a reset is left out.
        return list(take_frames(answer))

    def check_unharmed(self) -> None:
        """The same process, nothing unhandled in its log, and every message of the innocent pair as it was sent."""
        self.beat()
        assert self.broker.running
        assert self.broker.pid == self.pid
        log = self.broker.log_path.read_text(errors="replace")
        unhandled = [line for line in log.splitlines() if "Traceback" in line or "unhandled" in line]
        assert not unhandled, "\n".join(unhandled[:5])
        with WireClient(self.broker.service_url) as reader:
            consumer = reader.subscribe("healthy", "kept")
            reader.flow(consumer, 1_000_000)
            assert [payload_of(frame) for frame in reader.messages(len(self.sent))] == self.sent


def answers(frames: list[Frame], kind: int) -> list[Any]:
    return [frame.body for frame in frames if frame.command.type == kind]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with BrokerProcess(tmp_path_factory.mktemp("malformed") / "data") as broker:
        victim = Victim(broker)
        yield victim
        victim.close()
        print(f"{victim.cases} malformed cases, {len(victim.sent)} beats of the healthy pair between them")


@pytest.fixture
def victim(attacked: Victim) -> Iterator[Victim]:
    """The attacked broker; after the test it must be unharmed."""
    yield attacked
    attacked.check_unharmed()


def test_every_specimen_is_valid_before_it_is_spoiled(victim: Victim) -> None:
    for name, frame in SPECIMENS.items():
        if name in ("connect", "send_receipt", "message", "auth_challenge"):
            continue
        errors = answers(victim.attack(OPENING + frame), Type.ERROR)
        assert not [error for error in errors if "malformed" in error.message], name


@cases(4000)
@given(name=SPECIMEN, bits=st.lists(st.integers(0, 1 << 14), min_size=1, max_size=8), first=st.booleans())
def test_flipped_bits(victim: Victim, name: str, bits: list[int], first: bool) -> None:
    victim.attack((b"" if first else OPENING) + flip(SPECIMENS[name], bits))


@cases(1500)
@given(name=SPECIMEN, length=st.integers(0, 400), then=SPECIMEN)
def test_truncated_frames(victim: Victim, name: str, length: int, then: str) -> None:
    frame = SPECIMENS[name]
    # Cut short and either nothing more, or the next frame's bytes where the rest should be.
    victim.attack(OPENING + frame[: length % len(frame)])
    victim.attack(OPENING + frame[: length % len(frame)] + SPECIMENS[then])


@cases(1500)
@given(name=SPECIMEN, size=U32, command_size=st.one_of(st.none(), U32))
def test_sizes_that_lie(victim: Victim, name: str, size: int, command_size: int | None) -> None:
    frame = SPECIMENS[name]
    tail = frame[4:] if command_size is None else command_size.to_bytes(4, "big") + frame[8:]
    victim.attack(OPENING + size.to_bytes(4, "big") + tail)


@cases(1500)
@given(data=st.binary(max_size=2000), connected=st.booleans())
def test_random_bytes(victim: Victim, data: bytes, connected: bool) -> None:
    victim.attack((OPENING if connected else b"") + data)


@cases(2500)
@given(names=st.lists(SPECIMEN, min_size=1, max_size=4), seed=U32)
def test_absurd_values_in_well_formed_commands(victim: Victim, names: list[str], seed: int) -> None:
    rng = random.Random(seed)
    victim.attack(OPENING + b"".join(with_extreme_fields(SPECIMENS[name], rng) for name in names))


@cases(300)
@given(excess=st.integers(1, 0xFFFFFFFF - 6 * 1024 * 1024))
def test_an_oversized_frame_is_answered_and_ends_the_connection(victim: Victim, excess: int) -> None:
    size = 5 * 1024 * 1024 + 10 * 1024 + excess
    (error,) = answers(victim.attack(CONNECT + size.to_bytes(4, "big") + b"\0\0\0\4", ends_itself=True), Type.ERROR)
    assert str(size) in error.message


@cases(300)
@given(name=SPECIMEN, excess=st.integers(1, 0xFFFF0000))
def test_a_command_larger_than_its_frame_is_answered_and_ends_the_connection(
    victim: Victim, name: str, excess: int
) -> None:
    frame = SPECIMENS[name]
    size = min(int.from_bytes(frame[:4], "big") - 4 + excess, 0xFFFFFFFF)
    spoiled = frame[:4] + size.to_bytes(4, "big") + frame[8:]
    (error,) = answers(victim.attack(CONNECT + spoiled, ends_itself=True), Type.ERROR)
    assert "malformed" in error.message


@cases(200)
@given(name=st.sampled_from(sorted(set(SPECIMENS) - {"connect"})))
def test_a_first_command_other_than_connect_is_answered_and_ends_the_connection(victim: Victim, name: str) -> None:
    (error,) = answers(victim.attack(SPECIMENS[name], ends_itself=True), Type.ERROR)
    assert "CONNECT" in error.message


@cases(700)
@given(bits=st.lists(st.integers(0, 1 << 14), min_size=1, max_size=8, unique=True), body=st.binary(max_size=500))
def test_a_spoiled_entry_is_refused_and_the_connection_lives_on(victim: Victim, bits: list[int], body: bytes) -> None:
    entry = make_entry(body)
    # Behind the magic number: without it there would be no checksum to verify.
    spoiled = entry[:2] + flip(entry[2:], bits)
    if spoiled == entry:
        return
    topic = "persistent://public/default/spoiled-entries"
    frames = victim.attack(
        CONNECT
        + encode(Type.PRODUCER, topic=topic, producer_id=PRODUCER_ID, request_id=1)
        + encode(Type.SEND, spoiled, producer_id=PRODUCER_ID, sequence_id=7, num_messages=1)
        + encode(Type.PING)
    )
    (refusal,) = answers(frames, Type.SEND_ERROR)
    assert (refusal.sequence_id, refusal.error) == (7, wire.ChecksumError)
    assert not answers(frames, Type.SEND_RECEIPT)
    assert answers(frames, Type.PONG)


def test_what_the_attacks_left_stored_is_whole(victim: Victim) -> None:
    """Entries that were accepted on the way pass their checksums when they are read."""
    with WireClient(victim.broker.service_url) as reader:
        consumer = reader.subscribe("spoiled", "inspection", initialPosition=wire.CommandSubscribe.Earliest)
        reader.flow(consumer, 1_000_000)
        for frame in (frame for frame in reader.fence() if frame.command.type == Type.MESSAGE):
            parse_entry(frame.entry)


def test_it_survives_a_restart_with_everything_the_attacks_made(victim: Victim) -> None:
    victim.beat()
    victim.close()
    victim.broker.restart()
    victim.connect()
