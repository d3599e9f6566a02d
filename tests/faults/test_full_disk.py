"""A disk that fills up under a running broker, on a small real file system.

It is full twice over: by the messages themselves, down to the reserve that is kept for everything else, and by a
neighbour that takes the last byte in the middle of the work. New messages are then refused with the reason, reads go
on, no success is answered for what could not be stored, and when there is room again everything works as before.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from urllib.error import HTTPError

import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.entries import make_entry
from tests.support.polling import eventually
from tests.support.rest import call, topic_stats
from tests.support.wire_client import WireError
from tests.support.wire_link import WireLink, closing_links

from .kill_load import LoadConsumer, check_backlog
from .promises import Delivered, Promises, Published, SubscriptionPromises

MIB = 1 << 20
DISK_BYTES = 32 * MIB
SETTINGS = {
    "HELIOGRAPH_DISK_RESERVE_BYTES": str(4 * MIB),
    "HELIOGRAPH_SEGMENT_BYTES": str(2 * MIB),
    "HELIOGRAPH_LEDGER_MAX_ENTRIES": "50",
    "HELIOGRAPH_MAX_UNACKED_PER_CONSUMER": "0",
    "HELIOGRAPH_MAX_UNACKED_PER_SUBSCRIPTION": "0",
}
WITHIN_S = 180.0
NAMESPACE = "public/default"
TOPIC = "persistent://public/default/full"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def broker(small_disk: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    # Its log must not be on the disk that is full.
    started = BrokerProcess(small_disk / "data", environment=SETTINGS, log_path=tmp_path / "broker.log")
    started.start()
    retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    call(f"{started.http_url}/admin/v2/namespaces/{NAMESPACE}/retention", "POST", retention)
    yield started
    if started.running:
        started.kill9()


class Neighbour:
    """Somebody else on the same disk, who takes all of it and gives it back."""

    def __init__(self, disk: Path) -> None:
        self._path = disk / "neighbour"

    def take_everything(self) -> None:
        with self._path.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(64 * 1024))
            except OSError:
                pass
            try:
                while True:
                    file.write(b"x")
            except OSError:
                pass

    def give_back(self) -> None:
        self._path.unlink(missing_ok=True)


class Publisher:
    """Publishes entry by entry with a window and notes of each whether it was receipted or refused.

    An entry that is refused closes the producer, and those behind it on their way are dropped; it opens another one.
    """

    def __init__(self, name: str, promises: Promises, size: int = 4000) -> None:
        self.name = name
        self.refusals: list[str] = []
        self._promises = promises
        self._size = size
        self._sequence_id = 0
        self._pending: dict[int, int] = {}
        self._topic = ""

    async def open(self, broker: BrokerProcess, topic: str = TOPIC) -> None:
        self._link = await WireLink.connect(broker.service_url)
        self._link.on_receipt = self._receipted
        self._topic = topic
        await self._register()

    async def _register(self) -> None:
        self._pending.clear()
        self._link.closed_producers.clear()
        self._id = await self._link.producer(self._topic, producer_name=self.name, user_provided_producer_name=True)

    async def _returns(self) -> bool:
        """Open another producer after one was closed; return whether that is not refused, too."""
        self._collect_refusals()
        try:
            await self._register()
        except WireError as error:
            if error.code != wire.PersistenceError:
                raise
            self.refusals.append(str(error))
            self._link.closed_producers.append(self._id)
            return False
        return True

    def _receipted(self, receipt: wire.CommandSendReceipt) -> None:
        at = receipt.message_id
        size = self._pending.pop(receipt.sequence_id)
        self._promises.receipted(Published(self.name, receipt.sequence_id), at.ledgerId, at.entryId, size)

    def _collect_refusals(self) -> None:
        for error in self._link.send_errors:
            self._pending.pop(error.sequence_id)
            self.refusals.append(error.message)
        self._link.send_errors.clear()

    async def publish(self, count: int, *, window: int = 20) -> int:
        """Publish ``count`` entries and wait until each was answered; return how many were receipted."""
        before = self._promises.receipts
        deadline = time.monotonic() + WITHIN_S
        for _ in range(count):
            if self._link.closed_producers and not await self._returns():
                continue
            self._send()
            while len(self._pending) >= window and not self._link.closed_producers:
                await self._wait(deadline)
        while self._pending and not self._link.closed_producers:
            await self._wait(deadline)
        self._collect_refusals()
        return self._promises.receipts - before

    def _send(self) -> None:
        self._sequence_id += 1
        entry = make_entry(bytes(self._size), producer_name=self.name, sequence_id=self._sequence_id)
        self._pending[self._sequence_id] = len(entry)
        self._link.publish(self._id, entry, sequence_id=self._sequence_id)

    async def _wait(self, deadline: float) -> None:
        assert time.monotonic() < deadline, f"{len(self._pending)} entries are not answered"
        await asyncio.sleep(0.002)
        self._collect_refusals()
        if self._link.failure is not None:
            raise self._link.failure
        assert not self._link.ended.is_set(), "the connection ended"

    async def publish_until_taken(self, count: int) -> None:
        """Publish until ``count`` entries in a row were receipted."""
        deadline = time.monotonic() + WITHIN_S
        while await self.publish(count) < count:
            assert time.monotonic() < deadline, f"still refused: {self.refusals[-1]}"
            await asyncio.sleep(0.5)
        self.refusals.clear()

    async def publish_until_full(self, broker: BrokerProcess) -> None:
        """Publish until messages are refused and the broker reports it: after a refused group a smaller one may fit."""
        deadline = time.monotonic() + WITHIN_S
        while not self.refusals or "the disk is full" not in await asyncio.to_thread(readiness, broker):
            assert time.monotonic() < deadline, "the disk never got full"
            await self.publish(100)


def readiness(broker: BrokerProcess) -> str:
    """Return "" if the broker is ready, else the reason it gives."""
    try:
        call(f"{broker.http_url}/health/ready")
    except HTTPError as error:
        if error.code != 503:
            raise
        return error.read().decode()
    return ""


async def subscribe(broker: BrokerProcess, topic: str, *names: str) -> None:
    link = await WireLink.connect(broker.service_url)
    for name in names:
        await link.subscribe(topic, name, subType=wire.CommandSubscribe.Shared)
    link.close()


class Reader:
    """One Shared subscription, its promises, and a reader that recounts it."""

    def __init__(self, name: str, *, receipts: bool = True, may_be_refused: bool = False) -> None:
        self.promises = SubscriptionPromises(name)
        self.consumer = LoadConsumer(
            self.promises, Random(1), cumulative=False, receipts=receipts, may_be_refused=may_be_refused
        )

    async def recount(self, broker: BrokerProcess, promises: Promises, topic: str = TOPIC) -> list[Delivered]:
        """Connect and read until everything owed has come; compare it with the promises and the broker's counts."""
        await self.consumer.open(broker.service_url, topic)
        delivered = await self.consumer.recount_owed()
        self.promises.check(delivered)
        await asyncio.to_thread(check_backlog, broker.http_url, topic.rsplit("/", 1)[1], self.promises.name, delivered)
        return delivered


def explained(broker: BrokerProcess, run: Callable[[], object]) -> None:
    try:
        run()
    except (AssertionError, TimeoutError, WireError) as error:
        raise AssertionError(f"{error!r}; exit code {broker.process.poll()}; log:\n{broker.log_tail()}") from error


def test_a_disk_full_of_messages_refuses_more_and_serves_the_rest(broker: BrokerProcess, small_disk: Path) -> None:
    explained(broker, lambda: asyncio.run(closing_links(_full_of_messages(broker))))


async def _full_of_messages(broker: BrokerProcess) -> None:
    reader = Reader("reader")
    promises = Promises({"reader": reader.promises})
    await subscribe(broker, TOPIC, "reader")
    publisher = Publisher("p", promises)
    await publisher.open(broker)
    await publisher.publish_until_full(broker)
    assert promises.receipts > 2000
    assert all("new messages are refused" in refusal for refusal in publisher.refusals), publisher.refusals[:3]
    assert call(f"{broker.http_url}/health/live") == {"status": "live"}
    # Reads and acknowledgments go on: the reserve is theirs. What they free is given back and taken again.
    delivered = await reader.recount(broker, promises)
    assert len(delivered) == promises.receipts
    await reader.consumer.acknowledge_share(0.8)
    await asyncio.to_thread(eventually, lambda: readiness(broker) == "", within_s=WITHIN_S, what="ready again")
    # Ready again with the first space that is back; the rest follows, copy by copy.
    await publisher.publish_until_taken(500)
    broker.kill9()
    await asyncio.to_thread(broker.start)
    await reader.recount(broker, promises)
    reader.consumer.acknowledge_everything()
    await asyncio.to_thread(
        eventually,
        lambda: topic_stats(broker.http_url, f"{NAMESPACE}/full")["storageSize"] == 0,
        within_s=WITHIN_S,
        what="everything given back",
    )


_OPEN = """
import errno, sys
from pathlib import Path
from heliograph_broker.storage.disk.disk import RealDisk
try:
    RealDisk().open_environment(Path(sys.argv[1]), 1 << 20).close()
except OSError as error:
    sys.exit(errno.errorcode[error.errno])
"""


def test_opening_an_environment_on_a_full_disk_fails_and_kills_nobody(small_disk: Path) -> None:
    """LMDB's lock file is a map: touching a page of it for which there is no room would be a SIGBUS."""
    neighbour = Neighbour(small_disk)
    neighbour.take_everything()
    command = [sys.executable, "-c", _OPEN, str(small_disk / "segment.lmdb")]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (refused.returncode, refused.stderr.strip()) == (1, "ENOSPC")
    neighbour.give_back()
    assert subprocess.run(command).returncode == 0
    neighbour.take_everything()
    assert subprocess.run(command).returncode == 0


def test_a_disk_taken_by_others_while_ledgers_roll_loses_nothing(broker: BrokerProcess, small_disk: Path) -> None:
    explained(broker, lambda: asyncio.run(closing_links(_taken_by_others(broker, Neighbour(small_disk)))))


async def _taken_by_others(broker: BrokerProcess, neighbour: Neighbour) -> None:
    """Publishing, rolling, acknowledging, trimming and expiring while the last byte comes and goes."""
    reader, plain = Reader("reader", may_be_refused=True), Reader("plain", receipts=False)
    promises = Promises({"reader": reader.promises, "plain": plain.promises})
    mortal = Reader("mortal")
    expiring = Promises({"mortal": mortal.promises})
    expiring_topic = f"{TOPIC}-expiring"
    await subscribe(broker, TOPIC, "reader", "plain")
    await subscribe(broker, expiring_topic, "mortal")
    publisher, other = Publisher("p", promises), Publisher("q", expiring)
    await other.open(broker, expiring_topic)
    assert await other.publish(200) == 200
    refused = 0
    await publisher.open(broker)
    for turn in range(4):
        await publisher.publish_until_taken(200)
        for each in (reader, plain):
            await each.recount(broker, promises)
        filling = asyncio.create_task(asyncio.to_thread(neighbour.take_everything))
        await publisher.publish(300)
        await filling
        # Not one byte is free: acknowledgments now, and the trims that follow from them.
        await publisher.publish(100)
        refused += len(publisher.refusals)
        assert publisher.refusals, f"turn {turn}: nothing was refused although the disk was full"
        assert await asyncio.to_thread(readiness, broker), "ready although the disk is full"
        for each in (reader, plain):
            each.consumer.start_acknowledging()
        await asyncio.sleep(0.5)
        if turn == 1:
            # A TTL that is set now, or refused now; it holds when it was confirmed.
            url = f"{broker.http_url}/admin/v2/persistent/{NAMESPACE}/full-expiring/messageTTL?messageTTL=1"
            await asyncio.to_thread(_try, url)
        if turn >= 2:
            # A crash on a full disk, and a start there: it says why it is not ready, or why it cannot start.
            broker.kill9()
            await asyncio.to_thread(_start_on_full_disk, broker, neighbour)
            await publisher.open(broker)
        for each in (reader, plain):
            each.consumer.link.close()
        neighbour.give_back()
        await asyncio.to_thread(eventually, lambda: readiness(broker) == "", within_s=WITHIN_S, what="ready again")
    url = f"{broker.http_url}/admin/v2/persistent/{NAMESPACE}/full-expiring/messageTTL?messageTTL=1"
    await asyncio.to_thread(call, url, "POST")
    await asyncio.to_thread(
        eventually,
        lambda: topic_stats(broker.http_url, f"{NAMESPACE}/full-expiring")["storageSize"] == 0,
        within_s=WITHIN_S,
        what="everything expired",
    )
    for each in (reader, plain):
        await each.recount(broker, promises)
        each.consumer.acknowledge_everything()
    await asyncio.to_thread(
        eventually,
        lambda: topic_stats(broker.http_url, f"{NAMESPACE}/full")["storageSize"] == 0,
        within_s=WITHIN_S,
        what="everything given back",
    )
    assert refused


def _try(url: str) -> None:
    try:
        call(url, "POST")
    except HTTPError as error:
        if error.code not in (500, 503):
            raise


def _start_on_full_disk(broker: BrokerProcess, neighbour: Neighbour) -> None:
    neighbour.take_everything()
    try:
        broker.start()
    except AssertionError as error:
        if "No space left on device" not in str(error):
            raise
        neighbour.give_back()
        broker.start()
        return
    assert "full" in readiness(broker), "ready on a full disk"
