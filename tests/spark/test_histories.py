"""Random histories of topics are read without a message too many or too few; see docs/pipeline.md."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.broker_process import BrokerProcess

from .histories import history
from .histories.defects import DEFECTS, put_back
from .histories.heliograph_topic import HeliographTopic
from .histories.queries import Batch, Stream, Undisturbed
from .histories.topic import LEDGER, Topic

#: Always the same seeds, so that a failure is one of the change that is tested; scripts/reading-histories runs others.
SEEDS = (0, 2, 3, 4, 5, 7, 10, 40, 84, 219)
#: A seed that finds each defect, on either broker.
FOUND = {
    "held-ledgers": 5,
    "ends-of-ledgers": 12,
    "last-chunk": 0,
    "compacted-is-lost": 18,
    "near-chunks": 0,
    "one-split": 0,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": str(LEDGER)}
    with BrokerProcess(tmp_path_factory.mktemp("small") / "data", environment=settings) as running:
        yield running


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_read_once_or_missed_by_name(small: BrokerProcess, seed: int) -> None:
    result = history.run(partial(HeliographTopic, small), seed)
    assert result.violation is None, "\n".join([*result.lines, f"scripts/reading-histories --seed {seed}"])


@pytest.mark.parametrize("defect", FOUND)
def test_a_defect_is_found_by_its_seed(small: BrokerProcess, defect: str) -> None:
    with put_back(defect):
        assert history.run(partial(HeliographTopic, small), FOUND[defect]).violation is not None
    without = history.run(partial(HeliographTopic, small), FOUND[defect])
    assert without.violation is None, "\n".join(without.lines)


def test_every_defect_has_a_seed_that_finds_it() -> None:
    assert FOUND.keys() == DEFECTS.keys()


def _options(topic: Topic, **others: str) -> dict[str, str]:
    broker = topic.broker
    needed = {"service.url": broker.service_url, "admin.url": broker.http_url, "topic": topic.name}
    return needed | {"failOnDataLoss": "true", "maxEntriesPerSplit": "4"} | others


def _nothing() -> None:
    """Let nothing happen meanwhile."""


@pytest.mark.parametrize("later", [0, 1])
def test_the_compacted_view_is_read_with_what_is_stored_nowhere_else(small: BrokerProcess, later: int) -> None:
    topic = HeliographTopic(small, 0, compacted=True)
    (partition,) = topic.partitions.values()
    topic.publish(partition, ["k1", "k2"] * LEDGER)
    topic.compact()
    last = partition.entries[-1]
    topic.publish(partition, ["k3"] * later)
    topic.expire(partition, last, [])
    topic.trim(by_entry=True)
    query = Batch(topic, _options(topic, **{"pulsar.reader.readCompacted": "true"}))
    assert query.run(_nothing) == f"{2 + later} messages"
    topic.close()


def test_what_goes_after_the_plan_is_missed_by_a_task(small: BrokerProcess) -> None:
    topic = HeliographTopic(small, 0, compacted=False)
    (partition,) = topic.partitions.values()
    topic.publish(partition, ["k"] * 2)
    query = Stream(topic, _options(topic, startingOffsets="earliest"))
    query.finish()
    topic.publish(partition, ["k"] * LEDGER)
    trimmed: list[bool] = []

    def trim() -> None:
        if not trimmed:
            trimmed.append(True)
            topic.expire(partition, partition.entries[LEDGER - 1], [])
            topic.trim(by_entry=False)

    # The driver has asked for the ledgers by then, and warns of nothing.
    ended = query.step(Undisturbed(), trim)
    assert "named" in ended
    assert f"{LEDGER - 2} of the entries" in ended
    topic.close()


def test_a_query_with_a_subscription_goes_on_when_its_topic_is_recreated(
    small: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = HeliographTopic(small, 2, compacted=False)
    first, second = topic.partitions.values()
    topic.publish(first, ["k"] * LEDGER)
    topic.publish(second, ["k"] * LEDGER)
    query = Stream(topic, _options(topic, startingOffsets="earliest", predefinedSubscription="query"))
    query.finish()
    topic.recreate()
    # The other partition has nothing new, so the offsets keep a position that is nowhere any more.
    topic.publish(first, ["k"])
    query.finish()
    assert [len(rows) for rows in query.rows[1].values()] == [1]
    topic.close()


@pytest.mark.parametrize("most", [1, 1000])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_what_was_deleted_before_a_query_began_is_not_missed_without_the_ledgers(
    small: BrokerProcess, starting: str, most: int
) -> None:
    topic = HeliographTopic(small, 0, compacted=False)
    (partition,) = topic.partitions.values()
    topic.publish(partition, ["k"] * 2)
    topic.expire(partition, None, [])
    topic.trim(by_entry=True)
    options = _options(topic, startingOffsets=starting, maxEntriesPerSplit=str(most))
    del options["admin.url"]
    query = Stream(topic, options)
    query.finish()
    topic.publish(partition, ["k"] * 3)
    query.finish()
    assert [len(rows) for batch in query.rows.values() for rows in batch.values()] == [3]
    topic.close()


def test_what_a_query_loses_of_its_first_ledger_is_missed_without_the_list_of_ledgers(small: BrokerProcess) -> None:
    topic = HeliographTopic(small, 0, compacted=False)
    (partition,) = topic.partitions.values()
    topic.publish(partition, ["k"])
    options = _options(topic, startingOffsets="earliest")
    del options["admin.url"]
    query = Stream(topic, options)
    query.finish()
    topic.publish(partition, ["k"] * 3)
    topic.expire(partition, partition.entries[2], [])
    topic.trim(by_entry=True)
    assert "named" in query.step(Undisturbed(), _nothing)
    topic.close()
