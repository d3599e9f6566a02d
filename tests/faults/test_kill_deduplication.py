"""Kill -9 with deduplication switched on: what clients send again after each kill is stored exactly once.

``--rounds`` and ``--seed`` as for the other kills.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.polling import eventually
from tests.support.rest import call, keep_nothing, topic_stats

from .resending import WITHIN_S, Audit, Resender

TOPIC = "killed"
#: Small, so that ledgers roll and the snapshot is behind by many of them.
SETTINGS = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": "300", "HELIOGRAPH_MAX_UNACKED_PER_CONSUMER": "0"}


async def _kills(broker: BrokerProcess, rounds: int, rng: random.Random) -> tuple[list[Resender], Audit]:
    await asyncio.to_thread(call, f"{broker.http_url}/admin/v2/namespaces/public/default/deduplication", "POST", True)
    await asyncio.to_thread(keep_nothing, broker.http_url)
    resenders = [Resender("few", 3, TOPIC), Resender("many", 300, TOPIC)]
    audit = Audit(TOPIC)
    for number in range(rounds + 1):
        await audit.connect(broker.service_url)
        for resender in resenders:
            await resender.connect(broker.service_url)
        links = [audit.link, *(resender.link for resender in resenders)]
        if number == rounds:
            # Each was killed soon: there may have been no receipt yet.
            async with asyncio.timeout(WITHIN_S):
                while not all(resender.receipted for resender in resenders):
                    await audit.link.ping()
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


def stored_bytes(broker: BrokerProcess) -> int:
    return int(topic_stats(broker.http_url, f"public/default/{TOPIC}")["storageSize"])


@pytest.mark.timeout(0)  # --rounds sets how long it may take; every step has a deadline of its own
def test_what_is_sent_again_after_a_kill_is_stored_exactly_once(tmp_path: Path, rounds: int, seed: int) -> None:
    broker = BrokerProcess(tmp_path / "data", environment=SETTINGS)
    broker.start()
    rounds = max(3, rounds // 4)
    try:
        resenders, audit = asyncio.run(_kills(broker, rounds, random.Random(seed)))
        receipted = sum(resender.receipted for resender in resenders)
        # All is acknowledged, and deleted in its turn.
        eventually(lambda: stored_bytes(broker) < 200 * receipted, what="less stored than had receipts")
        stored = stored_bytes(broker)
    except (AssertionError, TimeoutError) as error:
        raise AssertionError(f"{error!r}; log:\n{broker.log_tail()}") from error
    finally:
        if broker.running:
            broker.kill9()
    print(
        f"{rounds} kills: {receipted} receipts, {sum(each.repeated for each in resenders)} of them "
        f"for what was stored before; {stored} bytes still stored"
    )
    for resender in resenders:
        for sequence_id in range(1, resender.receipted + 1):
            positions = audit.stored.get((resender.name, sequence_id), set())
            assert len(positions) == 1, f"{resender.name}:{sequence_id} is stored at {sorted(positions)}"
    assert all(resender.repeated > 0 for resender in resenders)
    assert "Traceback" not in broker.log_path.read_text(errors="replace"), broker.log_tail()
