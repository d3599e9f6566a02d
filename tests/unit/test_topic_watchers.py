"""Watchers of topic lists: told everything that changed, with the hash of what there is then, at the cost of one."""

from __future__ import annotations

import time
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.errors import InvalidTopicName
from heliograph_broker.messaging.base.records import NamespaceRecord
from heliograph_broker.messaging.broker import topic_list
from heliograph_broker.messaging.broker.partition_growth import TURN
from heliograph_broker.messaging.broker.topic_list import PatternTooLarge, TopicListWatcher, TopicPattern, topics_hash

from tests.support.core import Core

NAMESPACE = "public/default"


class Watching:
    """A client that keeps its list by what it receives, and compares the hash each time."""

    def __init__(self, core: Core, pattern: str = f"persistent://{NAMESPACE}/.*") -> None:
        compiled = TopicPattern(pattern)
        self.known = {topic for topic in core.broker.directory.list_topics(NAMESPACE) if compiled.matches(topic)}
        self.updates = 0
        self.watcher: TopicListWatcher = core.broker.watches.watch(NAMESPACE, compiled, self.known, self.update)

    def update(self, new: list[str], deleted: list[str], list_hash: str) -> None:
        self.updates += 1
        assert set(deleted) <= self.known
        self.known -= set(deleted)
        assert not set(new) & self.known
        self.known |= set(new)
        assert topics_hash(self.known) == list_hash


def topic(name: str) -> TopicName:
    return TopicName.parse(name)


def test_watchers_hear_of_what_matches(core: Core) -> None:
    core.topic("a1")
    every, only_b = Watching(core), Watching(core, f"persistent://{NAMESPACE}/b.*")
    core.topic("b1")
    core.topic("a2")
    core.broker.topics.delete(topic("a1"))
    assert (every.updates, only_b.updates) == (0, 0)
    core.advance(50)
    assert every.known == set(core.broker.directory.list_topics(NAMESPACE))
    assert only_b.known == {f"persistent://{NAMESPACE}/b1"}
    assert (every.updates, only_b.updates) == (1, 1)
    core.advance(50)
    assert every.updates == 1


@pytest.mark.parametrize(
    "pattern",
    [
        f"persistent://{NAMESPACE}/orders",
        f"^persistent://{NAMESPACE}/orders$",
        f"{NAMESPACE}/orders",
        f"\\Qpersistent://{NAMESPACE}/orders\\E",
        f"\\Qpersistent://{NAMESPACE}/\\E[m-p].*",
    ],
)
def test_the_pattern_of_a_partitioned_topics_name_finds_its_partitions(core: Core, pattern: str) -> None:
    core.broker.partitioned.create(topic("orders"), 2)
    core.topic("orders-partition-x")
    core.topic("late")
    watching = Watching(core, pattern)
    own = {f"persistent://{NAMESPACE}/orders-partition-{number}" for number in range(2)}
    assert watching.known - own <= {f"persistent://{NAMESPACE}/orders-partition-x"}
    assert own <= watching.known
    core.broker.partitioned.extend(topic("orders"), 3)
    core.advance(50)
    assert f"persistent://{NAMESPACE}/orders-partition-2" in watching.known


def test_a_topic_that_came_and_went_is_not_told_and_one_that_came_back_is_told_as_both(core: Core) -> None:
    core.topic("kept")
    watching = Watching(core)
    core.topic("short")
    core.broker.topics.delete(topic("short"))
    core.advance(50)
    assert watching.updates == 0
    notified: list[tuple[list[str], list[str]]] = []
    core.broker.watches.watch(
        NAMESPACE, watching.watcher.list.pattern, watching.known, lambda new, gone, _: notified.append((new, gone))
    )
    core.broker.topics.delete(topic("kept"))
    core.topic("kept")
    core.advance(50)
    name = f"persistent://{NAMESPACE}/kept"
    assert notified == [([name], [name])]


def test_who_comes_later_hears_only_of_what_it_does_not_know(core: Core) -> None:
    early = Watching(core)
    core.topic("a")
    late = Watching(core)
    core.topic("b")
    core.advance(50)
    names = {f"persistent://{NAMESPACE}/{name}" for name in "ab"}
    assert early.known == late.known == names
    assert (early.updates, late.updates) == (2, 1)


def test_nobody_is_told_after_the_end(core: Core) -> None:
    one, other = Watching(core), Watching(core)
    core.topic("a")
    core.broker.watches.end(one.watcher)
    core.advance(50)
    assert (one.updates, other.updates) == (0, 1)
    core.broker.watches.end(other.watcher)
    core.topic("b")
    core.advance(50)
    assert other.updates == 1
    assert core.broker.watches._lists == {}


@pytest.mark.parametrize("partitions", [10, TURN])
def test_any_number_of_changes_and_watchers_cost_one_hash(core: Core, partitions: int) -> None:
    watching = [Watching(core) for _ in range(20)]
    with patch.object(topic_list, "topics_hash", side_effect=topics_hash) as hashes:
        core.broker.partitioned.create(topic("parted"), partitions)
        core.advance(50)
    assert hashes.call_count == 1
    assert {client.updates for client in watching} == {1}
    assert all(len(client.known) == partitions for client in watching)


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * (topic_list.MAX_PATTERN + 1),
        # Few characters, and tens of thousands of instructions.
        "(.{0,100}){0,10}x",
        r"(\pL|\pN){0,60}x",
        "|".join(f".*{number}.*" for number in range(400)),
    ],
    ids=["long", "repetitions", "classes", "alternatives"],
)
def test_a_pattern_that_takes_long_to_match_is_refused_and_not_repeated_in_full(pattern: str) -> None:
    with pytest.raises(PatternTooLarge) as refused:
        TopicPattern(pattern)
    assert "; valid: " in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_pattern_that_takes_long_for_many_topics_is_given_up() -> None:
    names = [f"persistent://acme/shop/{'a' * 200}{number}" for number in range(3000)]
    # Small enough by itself, and far from what anybody needs.
    slow = TopicPattern("persistent://(.?){300}q")
    began = time.thread_time()
    with pytest.raises(PatternTooLarge, match="; valid: "):
        slow.of(names)
    assert time.thread_time() - began < 0.5
    assert slow.of(names[:10]) == []
    assert len(TopicPattern("persistent://acme/shop/a+[0-9]+").of(names)) == 3000


def test_a_pattern_that_names_many_topics_is_taken() -> None:
    names = [f"acme/shop/orders-{number}" for number in range(150)]
    pattern = TopicPattern("persistent://" + "|".join(names))
    assert all(pattern.matches(f"persistent://{name}") for name in names)
    assert not pattern.matches("persistent://acme/shop/orders-150")


class Costly:
    """Replaces the CPU time: each match of a pattern that begins with ``slow`` takes a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent_s = 0.0
        matches = TopicPattern.matches

        def costly(pattern: TopicPattern, topic: str) -> bool:
            self.spent_s += 0.001 if "slow" in pattern.source else 0.0
            return matches(pattern, topic)

        monkeypatch.setattr(TopicPattern, "matches", costly)
        monkeypatch.setattr(topic_list, "time", SimpleNamespace(thread_time=lambda: self.spent_s))

    def spent(self) -> float:
        """Return the time since the last call."""
        spent_s, self.spent_s = self.spent_s, 0.0
        return spent_s


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> Costly:
    return Costly(monkeypatch)


def slow(number: int, names: str = ".*") -> str:
    return f"persistent://{NAMESPACE}/(slow{number})?{names}"


def settle(core: Core, costly: Costly) -> int:
    """Let ticks pass until nothing waits; return how many. None takes much longer than it may."""
    for ticks in range(1, 1000):
        core.advance(50)
        spent_s = costly.spent()
        if spent_s == 0.0:
            return ticks
        assert spent_s < 0.02
    raise AssertionError("something always waits")


@pytest.mark.parametrize("there", [True, False])
def test_many_slow_patterns_take_turns_and_others_hear_at_once(core: Core, costly: Costly, there: bool) -> None:
    if there:
        core.topic("a")
    watching = [Watching(core, slow(number)) for number in range(200)]
    every = Watching(core)
    costly.spent()
    core.topic("b")
    core.topic("c")
    assert costly.spent() == 0.0
    core.advance(50)
    assert 0.0 < costly.spent() < 0.02
    assert every.updates == 1
    assert settle(core, costly) > 10
    names = set(core.broker.directory.list_topics(NAMESPACE))
    assert len(names) == 2 + there
    assert all(client.known == names for client in [*watching, every])


def test_what_comes_and_goes_while_slow_patterns_wait(core: Core, costly: Costly) -> None:
    core.topic("kept")
    watching = [Watching(core, slow(number, "[a-k].*")) for number in range(100)]
    core.topic("a")
    core.topic("b")
    core.topic("other")
    core.advance(50)
    # Some have heard of the first one, and wait for the second.
    assert {len(client.known) for client in watching} >= {1}
    core.broker.topics.delete(topic("a"))
    core.broker.topics.delete(topic("b"))
    core.topic("a")
    late = Watching(core, slow(99, "[a-k].*"))
    core.broker.watches.end(watching[50].watcher)
    known = set(watching[50].known)
    costly.spent()
    settle(core, costly)
    expected = {f"persistent://{NAMESPACE}/{name}" for name in ("kept", "a")}
    assert all(client.known == expected for client in [*watching[:50], *watching[51:], late])
    assert watching[50].known == known
    assert core.broker.watches._waiting == {}


@pytest.mark.parametrize("seed", range(5))
def test_watchers_with_slow_patterns_know_what_there_is_whatever_happens(
    core: Core, costly: Costly, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # One match in a tick, so that something comes between any two.
    monkeypatch.setattr(topic_list, "_TURNS_S", 0.0005)
    random = Random(seed)
    watching = [Watching(core, slow(number, "[a-c].*")) for number in range(3)]
    there: set[str] = set()
    for _ in range(400):
        name = random.choice("abcdef")
        if random.random() < 0.5:
            core.advance(50)
        elif random.random() < 0.1:
            core.broker.watches.end(watching.pop(random.randrange(len(watching))).watcher)
            watching.append(Watching(core, slow(random.randrange(3), "[a-c].*")))
        elif name in there:
            core.broker.topics.delete(topic(name))
            there.discard(name)
        else:
            core.topic(name)
            there.add(name)
    costly.spent()
    settle(core, costly)
    expected = {f"persistent://{NAMESPACE}/{name}" for name in there & {"a", "b", "c"}}
    assert all(client.known == expected for client in watching)
    assert core.broker.watches._waiting == {}


def test_slow_patterns_of_one_namespace_do_not_keep_those_of_others_waiting(core: Core, costly: Costly) -> None:
    core.broker.namespaces.create("public/other", NamespaceRecord())
    watching = [Watching(core, slow(number)) for number in range(200)]
    heard: list[str] = []
    pattern = TopicPattern("persistent://public/other/(slow)?.*")
    core.broker.watches.watch("public/other", pattern, [], lambda new, deleted, list_hash: heard.extend(new))
    for name in ("a", "b"):
        core.topic(name)
    core.broker.topics.get_or_create(TopicName.parse("public/other/x"))
    core.advance(50)
    assert heard == ["persistent://public/other/x"]
    assert sum(client.updates for client in watching) < 50


def test_what_is_no_pattern_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidTopicName, match=r"^topics pattern '\(a' is not a regular expression: missing \)"):
        TopicPattern("(a")
