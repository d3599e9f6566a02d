"""Kill -9 with deduplication switched on: what clients send again after each kill is stored exactly once.

``--rounds`` and ``--seed`` as for the other kills.
"""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections import deque
from pathlib import Path

import pytest
from heliograph_broker.protocol import wire_pb2 as wire
from heliograph_broker.protocol.frames import parse_entry

from tests.integration.wire.client import WireError, make_entry
from tests.support.broker_process import BrokerProcess
from tests.support.wire_link import Type, WireLink

TOPIC = "killed"
WITHIN_S = 30.0
#: Small, so that ledgers roll and the snapshot is behind by many of them.
SETTINGS = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": "300", "HELIOGRAPH_MAX_UNACKED_PER_CONSUMER": "0"}


class _Resender:
    """Publishes with a window of unanswered entries; on each connection it first sends again what was not answered."""

    def __init__(self, name: str, window: int) -> None:
        self.name = name
        self.receipted = 0
        self.repeated = 0
        self.going_on = True
        self._window = window
        self._next = 1
        self._unanswered: deque[int] = deque()
        self._link: WireLink | None = None
        self._producer_id = 0

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    async def connect(self, service_url: str) -> None:
        self._link = link = await WireLink.connect(service_url)
        link.on_receipt = self._receipt
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    self._producer_id = await link.producer(
                        TOPIC, producer_name=self.name, user_provided_producer_name=True
                    )
                    break
                except WireError as error:
                    if error.code != wire.ProducerBusy:
                        raise
                    # The broker has not seen the last connection end yet.
                    await link.ping()
        for sequence_id in self._unanswered:
            self._send(sequence_id)
        self._fill()

    def _fill(self) -> None:
        while self.going_on and len(self._unanswered) < self._window:
            self._unanswered.append(self._next)
            self._send(self._next)
            self._next += 1

    def repeat_last_answered(self) -> None:
        """Send again what has its receipt already: the kills may have left nothing of that kind."""
        answered = self._unanswered[0] - 1
        assert answered > 0, "nothing was ever answered"
        self._unanswered.append(answered)
        # It is counted already.
        self.receipted -= 1
        self._send(answered)

    def _send(self, sequence_id: int) -> None:
        entry = make_entry(b"." * 200, producer_name=self.name, sequence_id=sequence_id)
        self.link.send(Type.SEND, entry, producer_id=self._producer_id, sequence_id=sequence_id, num_messages=1)

    def _receipt(self, receipt: wire.CommandSendReceipt) -> None:
        assert receipt.sequence_id == self._unanswered.popleft(), "receipts are not in order"
        self.receipted += 1
        if receipt.message_id.ledgerId == (1 << 64) - 1:
            self.repeated += 1
        self._fill()

    @property
    def idle(self) -> bool:
        return not self._unanswered


class _Audit:
    """Notes where each sequence id is stored, and acknowledges, so that it is trimmed."""

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], set[tuple[int, int]]] = {}
        self._link: WireLink | None = None
        self._consumer_id = 0
        self._permits = 0

    @property
    def link(self) -> WireLink:
        assert self._link is not None
        return self._link

    async def connect(self, service_url: str) -> None:
        self._link = link = await WireLink.connect(service_url)
        link.on_message = self._message
        self._consumer_id = await link.subscribe(TOPIC, "audit", subType=wire.CommandSubscribe.Shared)
        self._permits = 0
        link.flow(self._consumer_id, 1000)

    def _message(self, message: wire.CommandMessage, entry: bytes) -> None:
        metadata = parse_entry(entry).metadata
        position = (message.message_id.ledgerId, message.message_id.entryId)
        self.stored.setdefault((metadata.producer_name, metadata.sequence_id), set()).add(position)
        self.link.ack(self._consumer_id, [message.message_id])
        self._permits += 1
        if self._permits == 500:
            self.link.flow(self._consumer_id, self._permits)
            self._permits = 0


def _call(url: str, body: object = None, method: str = "GET") -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


async def _kills(broker: BrokerProcess, rounds: int, rng: random.Random) -> tuple[list[_Resender], _Audit]:
    await asyncio.to_thread(_call, f"{broker.http_url}/admin/v2/namespaces/public/default/deduplication", True, "POST")
    resenders = [_Resender("few", 3), _Resender("many", 300)]
    audit = _Audit()
    for number in range(rounds + 1):
        await audit.connect(broker.service_url)
        for resender in resenders:
            await resender.connect(broker.service_url)
        links = [audit.link, *(resender.link for resender in resenders)]
        if number == rounds:
            for resender in resenders:
                resender.repeat_last_answered()
            break
        # Skewed towards the first moments, when what was sent again is on its way.
        await asyncio.sleep(rng.random() ** 2 * 1.5)
        broker.kill9()
        for link in links:
            link.muted = True
        for link in links:
            await asyncio.wait_for(link.ended.wait(), WITHIN_S)
            link.check()
        await asyncio.to_thread(broker.start)
    for resender in resenders:
        resender.going_on = False
    async with asyncio.timeout(WITHIN_S):
        while not all(resender.idle for resender in resenders):
            await links[0].ping()
        while len(audit.stored) < sum(resender.receipted for resender in resenders):
            await links[0].ping()
    for link in links:
        link.check()
        link.close()
    return resenders, audit


@pytest.mark.timeout(0)  # --rounds sets how long it may take; every step has a deadline of its own
def test_what_is_sent_again_after_a_kill_is_stored_exactly_once(tmp_path: Path, rounds: int, seed: int) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=SETTINGS)
    broker.start()
    rounds = max(3, rounds // 4)
    try:
        resenders, audit = asyncio.run(_kills(broker, rounds, random.Random(seed)))
        stats = json.loads(_call(f"{broker.http_url}/admin/v2/persistent/public/default/{TOPIC}/stats"))
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error!r}; log:\n{broker.log_tail()}") from error
    finally:
        if broker.running:
            broker.kill9()
    print(
        f"{rounds} kills: {sum(r.receipted for r in resenders)} receipts, {sum(r.repeated for r in resenders)} of them "
        f"for what was stored before; {stats['storageSize']} bytes still stored"
    )
    for resender in resenders:
        for sequence_id in range(1, resender.receipted + 1):
            positions = audit.stored.get((resender.name, sequence_id), set())
            assert len(positions) == 1, f"{resender.name}:{sequence_id} is stored at {sorted(positions)}"
    assert all(resender.repeated > 0 for resender in resenders)
    assert stats["storageSize"] < 200 * sum(resender.receipted for resender in resenders)
    assert "Traceback" not in broker.log_path.read_text(errors="replace"), broker.log_tail()
