"""Many partitions are created in turns: what others see meanwhile, and what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.policies.policies import Policies
from heliograph_api.resources.model import AnyResource
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import BrokerError, Conflict, PreconditionFailed, TopicNotFound
from heliograph_broker.messaging.broker.partition_growth import TURN
from heliograph_broker.storage.commit import group_commit
from heliograph_broker.usecases.apply import apply_resources
from heliograph_broker.usecases.subscriptions import create_subscription

from tests.support.core import Core

NAME = TopicName.parse("persistent://public/default/wide")
COUNT = 5 * TURN
TICK_MS = 50


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path / "data")
    yield made
    made.close()


def there(core: Core) -> int:
    return sum(str(part) in core.broker.directory.topics for part in core.broker.directory.concrete_names(NAME))


def subscriptions(core: Core, index: int) -> list[str]:
    return list(core.broker.directory.get_topic(NAME.with_partition(index)).subscriptions)


def until_complete(core: Core) -> None:
    """Let turns pass, each of which creates some partitions only."""
    before = there(core)
    while core.broker.directory.growing:
        core.broker.ticks.run()
        assert there(core) - before <= TURN
        before = there(core)


def test_partitions_are_created_in_turns_and_the_last_one_is_waited_for(core: Core) -> None:
    outcomes: list[BrokerError | None] = []
    core.broker.partitioned.create(NAME, COUNT)
    core.broker.topics.growth.when_complete(NAME, outcomes.append)
    assert there(core) == TURN
    with pytest.raises(Conflict):
        core.broker.partitioned.create(NAME, COUNT)
    while there(core) < COUNT:
        assert not outcomes
        core.broker.ticks.run()
    assert outcomes == [None]
    core.broker.topics.growth.when_complete(NAME, outcomes.append)
    assert outcomes == [None, None]


def test_few_partitions_are_there_at_once(core: Core) -> None:
    core.broker.partitioned.create(NAME, TURN)
    assert there(core) == TURN
    assert not core.broker.directory.growing


@pytest.mark.parametrize("durable", [False, True])
def test_after_a_crash_the_others_are_created_or_none_is_there(core: Core, durable: bool) -> None:
    core.broker.partitioned.create(NAME, COUNT)
    if durable:
        core.commit()
        core.broker.ticks.run()
    core.crash()
    assert core.broker.directory.partitions_of(NAME) == COUNT * durable
    until_complete(core)
    assert sum(map(len, core.broker.directory.topics_by_namespace.values())) == COUNT * durable
    core.restart()
    assert not core.broker.directory.growing
    assert core.broker.directory.missing_partitions(NAME) == []


def test_no_partition_is_lost_whichever_group_is_the_last_one_before_a_crash(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "GROUP_BYTES", 1)
    core.broker.partitioned.create(NAME, TURN + 1)
    producer = core.producer(core.topic("other"))
    # The records of the second turn are in another group than those of the first.
    core.publish(producer)
    core.publish(producer)
    core.broker.ticks.run()
    assert not core.broker.directory.growing
    core.store.writer._seal()
    core.crash()
    until_complete(core)
    assert core.broker.directory.missing_partitions(NAME) == []
    core.commit()
    core.broker.topics.delete(NAME.with_partition(0))
    core.restart()
    until_complete(core)
    assert core.broker.directory.missing_partitions(NAME) == [0]


def test_few_added_partitions_have_the_subscriptions_of_the_others_after_a_crash_between_groups(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    core.broker.partitioned.create(NAME, 2)
    create_subscription(core.broker, NAME, "all")
    producer = core.producer(core.topic("other"))
    core.commit()
    monkeypatch.setattr(group_commit, "GROUP_BYTES", 1)
    core.broker.policies.set_broker(Policies(max_topics=100), Policies())
    core.publish(producer)
    core.publish(producer)
    core.broker.partitioned.extend(NAME, 4)
    core.store.writer._seal()
    core.crash()
    until_complete(core)
    assert core.broker.directory.partitions_of(NAME) == 4
    assert [subscriptions(core, index) for index in range(4)] == 4 * [["all"]]


def test_a_partition_that_is_deleted_later_stays_so(core: Core) -> None:
    core.broker.partitioned.create(NAME, COUNT)
    until_complete(core)
    core.broker.topics.delete(NAME.with_partition(COUNT - 1))
    core.restart()
    core.advance(TICK_MS)
    assert core.broker.directory.missing_partitions(NAME) == [COUNT - 1]


def test_a_topic_that_is_deleted_meanwhile_has_no_partitions(core: Core) -> None:
    outcomes: list[BrokerError | None] = []
    core.broker.partitioned.create(NAME, COUNT)
    core.broker.topics.growth.when_complete(NAME, outcomes.append)
    core.broker.partitioned.delete(NAME)
    core.advance(10 * TICK_MS)
    assert [type(each) for each in outcomes] == [TopicNotFound]
    assert not core.broker.directory.topics
    core.broker.partitioned.create(NAME, 2)
    assert there(core) == 2


def test_a_client_may_use_a_partition_before_its_turn(core: Core) -> None:
    core.broker.partitioned.create(NAME, COUNT)
    core.topic(str(NAME.with_partition(0))).create_subscription("one", "latest")
    last = core.topic(str(NAME.with_partition(COUNT - 1)))
    until_complete(core)
    assert core.broker.directory.get_topic(NAME.with_partition(COUNT - 1)) is last
    # A subscription of one partition of a new topic is none of the others'.
    assert [subscriptions(core, index) for index in (0, 1, TURN, COUNT - 1)] == [["one"], [], [], []]


def test_a_client_that_creates_no_topics_may_use_a_partition_before_its_turn(core: Core) -> None:
    core.broker.partitioned.create(NAME, COUNT)
    last = core.broker.topics.get_or_create(NAME.with_partition(COUNT - 1), create=False)
    assert core.broker.directory.get_topic(last.name) is last
    core.broker.topics.delete(NAME.with_partition(0))
    with pytest.raises(TopicNotFound):
        core.broker.topics.get_or_create(NAME.with_partition(0), create=False)


def test_added_partitions_have_the_subscriptions_of_the_others_whenever_they_come(core: Core) -> None:
    core.broker.partitioned.create(NAME, 2)
    create_subscription(core.broker, NAME, "all")
    core.broker.partitioned.extend(NAME, COUNT)
    early = core.topic(str(NAME.with_partition(COUNT - 1)))
    assert list(early.subscriptions) == ["all"]
    core.commit()
    core.crash()
    until_complete(core)
    assert {tuple(subscriptions(core, index)) for index in range(COUNT)} == {("all",)}


def test_what_needs_all_partitions_creates_them(core: Core) -> None:
    core.broker.partitioned.create(NAME, COUNT)
    create_subscription(core.broker, NAME, "all")
    assert {tuple(subscriptions(core, index)) for index in range(COUNT)} == {("all",)}
    core.broker.partitioned.extend(NAME, 2 * COUNT)
    core.broker.partitioned.create_missing(NAME)
    assert there(core) == 2 * COUNT
    core.broker.partitioned.extend(NAME, 3 * COUNT)
    core.broker.partitioned.extend(NAME, 3 * COUNT + 1)
    assert there(core) == 3 * COUNT + 1


def test_partitions_to_come_count(tmp_path: Path) -> None:
    core = Core(tmp_path / "data", max_topics_per_tenant=COUNT + 1)
    core.broker.partitioned.create(NAME, COUNT)
    core.topic("one")
    with pytest.raises(BrokerError, match="max_topics_per_tenant"):
        core.topic("two")
    core.broker.policies.set_broker(Policies(max_topics=COUNT + 1), Policies())
    with pytest.raises(PreconditionFailed, match=f"It has {COUNT + 1} of {COUNT + 1}"):
        core.broker.partitioned.create(TopicName.parse("more"), 1)
    until_complete(core)
    core.close()


def test_a_broker_that_stops_answers_who_waits(core: Core) -> None:
    outcomes: list[BrokerError | None] = []
    core.broker.partitioned.create(NAME, COUNT)
    core.broker.topics.growth.when_complete(NAME, outcomes.append)
    core.broker.topics.growth.stop()
    # A request that was under way then may ask later.
    core.broker.topics.growth.when_complete(NAME, outcomes.append)
    assert [str(each) for each in outcomes] == 2 * ["the broker stops; it goes on when it starts again"]
    core.restart()
    until_complete(core)
    assert there(core) == COUNT


def test_a_client_may_use_a_partition_before_its_turn_also_at_the_tenants_limit(tmp_path: Path) -> None:
    core = Core(tmp_path / "data", max_topics_per_tenant=COUNT)
    core.broker.partitioned.create(NAME, COUNT)
    core.topic(str(NAME.with_partition(COUNT - 1)))
    until_complete(core)
    core.broker.topics.delete(NAME.with_partition(0))
    core.topic(str(NAME.with_partition(0)))
    with pytest.raises(BrokerError, match="max_topics_per_tenant"):
        core.topic("one")
    core.close()


def test_a_partition_that_is_to_come_cannot_be_created_without_the_subscriptions_of_the_others(core: Core) -> None:
    core.broker.partitioned.create(NAME, 2)
    create_subscription(core.broker, NAME, "all")
    core.broker.partitioned.extend(NAME, COUNT)
    with pytest.raises(Conflict):
        core.broker.topics.create(NAME.with_partition(COUNT - 1))
    until_complete(core)
    assert subscriptions(core, COUNT - 1) == ["all"]


def manifest(spec: str) -> list[AnyResource]:
    head = "apiVersion: heliograph.dev/v1alpha1\nkind: "
    parts = [
        f"{head}Tenant\nmetadata: {{name: public}}",
        f"{head}Namespace\nmetadata: {{name: default}}\nspec: {{tenantRef: {{name: public}}}}",
        f"{head}Topic\nmetadata: {{name: wide}}\nspec: {{namespaceRef: {{name: default}}, {spec}}}",
    ]
    return parse("\n---\n".join(parts))


def test_manifests_create_many_partitions_in_turns(core: Core) -> None:
    apply_resources(core.broker, manifest(f"partitions: {COUNT}"))
    assert there(core) == TURN
    until_complete(core)
    assert there(core) == COUNT


def test_manifests_create_many_partitions_with_their_subscriptions(tmp_path: Path) -> None:
    core = Core(tmp_path / "data", max_topics_per_tenant=2 * COUNT)
    apply_resources(core.broker, manifest(f"partitions: {COUNT}, subscriptions: [all]"))
    assert {tuple(subscriptions(core, index)) for index in range(COUNT)} == {("all",)}
    core.broker.partitioned.extend(NAME, 2 * COUNT)
    # Those that are to come count once.
    apply_resources(core.broker, manifest(f"partitions: {2 * COUNT}, subscriptions: [all, more]"))
    assert {tuple(subscriptions(core, index)) for index in range(2 * COUNT)} == {("all", "more")}
    core.close()
