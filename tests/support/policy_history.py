"""Histories for the policy model: steps made from a seed, written as text, and cut down when one fails.

A step names things by numbers that mean something in any history (the n-th subscription, the n-th entry kept), so
that leaving out others keeps it valid: that is what makes the cutting simple.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

THEMES = ("retention", "ttl", "own ttl", "dead letters", "size quota", "age quota", "delay", "batches", "expires")

_TTLS = (0, 300, 1000, 1500, 2000, 4000, 10_000)
_SIZES = (0, 10, 40, 120, 300)
#: Stored sizes of one, two, five or eight messages of 40 bytes: limits that are met to the byte.
_EXACTLY = (67, 134, 335, 536)
_ACTIONS = ("producer_exception", "producer_request_hold", "consumer_backlog_eviction")


@dataclass(frozen=True)
class Step:
    """One thing that happens; prints as the Python that makes it."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        return f'step("{self.name}"{given}),'


def step(name: str, /, **arguments: Any) -> Step:
    return Step(name, arguments)


class HistoryMaker:
    """Makes one history from a seed. Each has a few themes, so that policies that meet have time to do so."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.themes = set(self._rng.sample(THEMES, self._rng.choice((1, 2, 2, 3, 3, 4))))

    def make(self) -> list[Step]:
        rng = self._rng
        steps = [self._policy() for _ in range(rng.randint(1, 3))]
        if rng.random() < 0.5:
            # Without it no level may set a retention, and data goes by the ledger.
            steps.append(step("policy", level="broker", name="retention", value=(0, 0)))
        if rng.random() < 0.9:
            steps.append(step("create", topic="t", name="a", at="earliest"))
        if rng.random() < 0.7:
            steps.append(step("connect", topic="t", subscription=0, kind=self._kind(), permits=rng.choice((2, 5, 50))))
        if "dead letters" in self.themes:
            steps += self._graveyard()
        rng.shuffle(steps)
        for _ in range(rng.randint(8, 40)):
            steps.append(self._step())
        if self.themes & {"ttl", "own ttl", "delay"} and rng.random() < 0.5:
            at = rng.randrange(len(steps))
            steps[at:at] = self._passed_over()
        # Whatever is due has happened when the history ends.
        return [*steps, step("wait", ms=1000), step("wait", ms=1000)]

    def _graveyard(self) -> list[Step]:
        """Dead letters that may die again, in a last place or in a circle."""
        rng = self._rng
        steps = [step("policy", level="topic:t", name="dead_letter_topic", value="d")]
        if rng.random() < 0.5:
            steps.append(step("policy", level="topic:t", name="message_ttl_ms", value=rng.choice(_TTLS)))
        if rng.random() < 0.6:
            steps.append(step("policy", level="topic:d", name="message_ttl_ms", value=rng.choice(_TTLS)))
            steps.append(step("policy", level="topic:d", name="dead_letter_topic", value=self._target("etd")))
        if rng.random() < 0.3:
            steps.append(step("policy", level="topic:e", name="message_ttl_ms", value=rng.choice(_TTLS)))
            steps.append(step("policy", level="topic:e", name="dead_letter_topic", value=self._target("td")))
        return steps

    def _passed_over(self) -> list[Step]:
        """Messages expire before a tick has seen it, are passed over, and live longer after all."""
        rng = self._rng
        return [
            step("policy", level="topic:t", name="message_ttl_ms", value=1000),
            step("create", topic="t", name=rng.choice("ab"), at="earliest"),
            step("publish", topic="t", sizes=(40,) * rng.choice((2, 3, 5))),
            *[self._step() for _ in range(rng.choice((0, 0, 1)))],
            step("blink", ms=999),
            step("blink", ms=rng.choice((1, 2, 300))),
            *[step("publish", topic="t", sizes=(10, 10)) for _ in range(rng.choice((0, 1)))],
            step("connect", topic="t", subscription=0, kind=self._kind(), permits=rng.choice((1, 3, 50))),
            step("policy", level="topic:t", name="message_ttl_ms", value=rng.choice((None, 10_000, 4000))),
        ]

    def _target(self, choice: str) -> str:
        """A dead-letter topic; one over its quota would refuse letters, which then wait: no matter of this model."""
        if self.themes & {"size quota", "age quota"}:
            choice = choice.replace("t", "d")
        return self._rng.choice(choice)

    # -- parts -----------------------------------------------------------------------------------------------

    def _kind(self) -> str:
        return self._rng.choice(("Exclusive", "Failover", "Shared", "Shared", "Key_Shared"))

    def _topic(self) -> str:
        return self._rng.choice("de") if "dead letters" in self.themes and self._rng.random() < 0.15 else "t"

    def _step(self) -> Step:
        rng = self._rng
        makers: list[tuple[Callable[[], Step], int]] = [
            (self._publish, 22),
            (lambda: step("leave", topic=self._topic()), 8 if "expires" in self.themes else 1),
            (self._wait, 12),
            (self._blink, 8),
            (self._acknowledge, 14),
            (self._consumers, 18),
            (self._policy, 9),
            (self._subscriptions, 6),
            (self._by_hand, 5),
            (lambda: step("restart"), 2),
        ]
        return rng.choices([maker for maker, _ in makers], [weight for _, weight in makers])[0]()

    def _publish(self) -> Step:
        rng = self._rng
        arguments: dict[str, Any] = {"topic": self._topic()}
        sizes = _SIZES if rng.random() < 0.7 else (40,)
        arguments["sizes"] = tuple(rng.choice(sizes) for _ in range(rng.choice((1, 1, 2, 3, 5))))
        if "batches" in self.themes and rng.random() < 0.6:
            arguments["batch"] = rng.choice((1, 2, 3, 5))
        if rng.random() < 0.4:
            arguments["key"] = rng.choice("xyz")
        if "own ttl" in self.themes and rng.random() < 0.6:
            texts = [str(ttl) for ttl in _TTLS] + [""]
            if rng.random() < 0.1:
                texts = ["soon", "-1", "1.5", " 7", "+3", str(2**63), str(2**63 - 1)]
            arguments["ttls"] = tuple(rng.choice(texts) for _ in range(rng.choice((1, 2, 3))))
        if "delay" in self.themes and rng.random() < 0.5:
            arguments["delay"] = rng.choice((-500, 200, 1000, 1500, 3000))
        return step("publish", **arguments)

    def _wait(self) -> Step:
        return step("wait", ms=self._rng.choice((1000, 1000, 1300, 2000, 3000, 6000)))

    def _blink(self) -> Step:
        return step("blink", ms=self._rng.choice((1, 100, 299, 300, 700, 999)))

    def _which(self) -> dict[str, Any]:
        return {"topic": self._topic(), "subscription": self._rng.choice((0, 0, 0, 1, 2))}

    def _entry(self) -> int:
        return min(self._rng.randint(0, 12), self._rng.randint(0, 12))

    def _acknowledge(self) -> Step:
        rng = self._rng
        which = self._which()
        choice = rng.random()
        if choice < 0.45:
            return step("ack", **which, entries=tuple({self._entry() for _ in range(rng.choice((1, 1, 2, 4)))}))
        if choice < 0.7 or "batches" not in self.themes:
            return step("ack up to", **which, entry=self._entry())
        if choice < 0.8:
            return step("ack up to", **which, entry=self._entry(), of_batch=rng.randint(1, 30))
        return step("ack of batch", **which, entry=self._entry(), remaining=rng.randint(0, 31))

    def _consumers(self) -> Step:
        rng = self._rng
        which = self._which()
        choice = rng.random()
        if choice < 0.3:
            return step("connect", **which, kind=self._kind(), permits=rng.choice((0, 1, 3, 50)))
        if choice < 0.65:
            return step("flow", **which, consumer=rng.randint(0, 2), permits=rng.choice((1, 2, 5, 50)))
        if choice < 0.85:
            return step("nack", **which, consumer=rng.randint(0, 2))
        return step("disconnect", **which, consumer=rng.randint(0, 2))

    def _subscriptions(self) -> Step:
        rng = self._rng
        choice = rng.random()
        if choice < 0.6:
            return step("create", topic=self._topic(), name=rng.choice("abc"), at=rng.choice(("earliest", "latest")))
        if choice < 0.8:
            return step("read", topic=self._topic(), at=rng.choice(("earliest", "latest")), permits=rng.choice((3, 50)))
        return step("unsubscribe", **self._which())

    def _by_hand(self) -> Step:
        rng = self._rng
        which = self._which()
        name = rng.choice(("seek", "seek", "seek", "clear", "skip", "expire by age", "expire up to", "truncate"))
        if name in ("seek", "expire up to"):
            return step(name, **which, entry=rng.randint(0, 14))
        if name == "skip":
            return step(name, **which, messages=rng.randint(1, 8))
        if name == "expire by age":
            return step(name, **which, ms=rng.choice((0, 500, 1000, 2000, 5000)))
        if name == "truncate":
            return step(name, topic=which["topic"])
        return step(name, **which)

    def _policy(self) -> Step:
        """Set, change or remove (None) one policy at one level."""
        rng = self._rng
        theme = rng.choice([*sorted(self.themes), "retention"])
        levels = ["topic:t", "topic:t", "namespace:live", "broker"]
        value: Any
        if theme == "retention":
            name = "retention"
            value = rng.choice(
                (
                    (-1, -1),
                    (0, 0),
                    (rng.choice((1000, 2000, 5000)), -1),
                    (-1, rng.choice((200, 500, 1500, *_EXACTLY))),
                    (3000, 600),
                )
            )
            levels += ["tenant limits"]
        elif theme in ("ttl", "own ttl", "delay", "batches"):
            name = "message_ttl_ms"
            value = rng.choice((*_TTLS, -1))
            levels += ["tenant limits", "broker limits", "topic:d"]
            if theme == "delay" and rng.random() < 0.3:
                name, value = rng.choice(("delayed_delivery", "ttl_counts_delay")), rng.random() < 0.5
                levels = ["topic:t", "namespace:live", "broker"]
            elif theme in ("own ttl", "batches") and rng.random() < 0.3:
                name, value = "ttl_in_batches", rng.random() < 0.4
                levels = ["topic:t", "namespace:live", "broker"]
        elif theme == "dead letters":
            name, value = "dead_letter_topic", self._target("dddet")
            levels = ["topic:t", "topic:t", "namespace:live", "topic:d"]
            if rng.random() < 0.5:
                name, value = "message_ttl_ms", rng.choice(_TTLS)
        elif theme == "expires":
            name, value = "expires_ms", rng.choice((1000, 2000, 5000, -1))
            levels = ["topic:t", "namespace:live"]
        else:
            name = "backlog_quota_size" if theme == "size quota" else "backlog_quota_age"
            limit = (
                rng.choice((0, 150, 400, 1000, *_EXACTLY))
                if theme == "size quota"
                else rng.choice((0, 900, 2000, 4000))
            )
            value = (rng.choice((limit, limit, limit, limit, limit, -1)), rng.choice(_ACTIONS))
            levels = ["topic:t", "topic:t", "namespace:live"]
        if rng.random() < 0.25:
            value = None
        return step("policy", level=rng.choice(levels), name=name, value=value)


def shrink(steps: Sequence[Step], fails: Callable[[list[Step]], bool], attempts: int = 600) -> list[Step]:
    """Return a short history that still fails: leave out ever smaller runs of steps as long as that works."""
    current = list(steps)
    run = max(1, len(current) // 2)
    while True:
        changed = False
        at = 0
        while at < len(current):
            if attempts <= 0:
                return current
            shorter = current[:at] + current[at + run :]
            attempts -= 1
            if fails(shorter):
                current, changed = shorter, True
            else:
                at += run
        if run == 1 and not changed:
            return current
        run = max(1, run // 2)
