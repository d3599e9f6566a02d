"""The history of one run: a list of operations made from a seed, each of which means something by itself.

An operation names its actors by small numbers and has a seed of its own for what it draws, so that a history from which
others were taken away can still be run: that is how one that fails is made small.
"""

from __future__ import annotations

import random
from typing import NamedTuple

CLIENTS = 5
TOPICS = 4


class Operation(NamedTuple):
    """``then_ms`` passes afterwards; if it is negative, only so many callbacks and jobs run."""

    kind: str
    client: int
    topic: int
    seed: int
    then_ms: int

    def __str__(self) -> str:
        then = f"{self.then_ms} ms" if self.then_ms >= 0 else f"{-self.then_ms} steps"
        return f"{self.kind}(client={self.client}, topic={self.topic}, seed={self.seed}) then {then}"


#: Kinds of operations and how often they are drawn: what clients do.
_TRAFFIC = {
    "produce": 30,
    "subscribe": 12,
    "flow": 14,
    "acknowledge": 26,
    "negative_acknowledge": 4,
    "close_consumer": 2,
    "cut": 3,
    "read": 2,
    "seek": 1.5,
    "settle": 6,
}
#: The operations of administrators.
_ADMINISTRATION = {
    "set_policies": 7,
    "skip": 1,
    "clear": 1,
    "expire": 1,
    "unsubscribe": 1,
    "delete_topic": 0.7,
    "unload": 1,
    "compact": 0.7,
    "create_namespace": 1,
}
#: The faults; a run has some of these.
_TROUBLES: dict[str, dict[str, float]] = {
    "crash": {"crash": 4, "power_cut": 4, "restart": 2},
    "disk": {"disk_full": 3, "write_errors": 2, "stall": 3},
    "reads": {"read_errors": 3},
    "clocks": {"wall_clock": 4},
    "slow": {"stop_reading": 4, "read_on": 4, "go_silent": 1, "stranger": 2},
    "hostile": {"hostile_send": 5, "hostile_acknowledge": 3, "poison": 4, "oversized_names": 3},
    "damage": {"flip_bit": 2, "lose_segment": 1, "restart": 2},
    "metadata": {"lose_metadata": 1.5, "restart": 1},
}


class _Some(NamedTuple):
    """``runs`` is the share of runs that have an operation, ``most`` how often at most."""

    runs: float
    most: int


#: Operations inserted into some runs, drawn apart so that all others stay as they are.
_ADDED = {"produce_chunks": _Some(0.3, 10), "unread_messages": _Some(0.12, 2), "lose_metadata": _Some(0.06, 1)}

#: Operations that are frequent in some runs, so that rare combinations come often: a *profile*, drawn by the seed.
PROFILES: dict[str, dict[str, float]] = {
    "trimming": {"trim_race": 12, "acknowledge": 30, "produce": 30, "crash": 3},
    "withholding": {"withhold": 10, "set_policies": 10},
    "letters": {"small_letters": 6},
    "bursts": {"bursts": 3, "restart": 1},
    "unread": {"unread_answers": 3, "go_silent": 4, "stop_reading": 4, "read_on": 4, "stranger": 4},
    "raising": {"raising": 8, "set_policies": 10},
    "hostile": {"poisoned_expiry": 6, "hostile_send": 15, "poison": 8, "hostile_acknowledge": 5, "oversized_names": 4},
    "clocks": {"clock_steps": 6, "wall_clock": 8, "set_policies": 12, "settle": 10},
    "readers": {"read": 25, "subscribe": 20, "flow": 20},
}

#: The same for what a run of the others would suffer from: less is claimed once something stored is damaged.
APART: dict[str, dict[str, float]] = {
    "losses": {"lost_entries": 3},
    "reservations": {"failed_reservation": 6},
}


def profile(seed: int) -> str | None:
    """Return the profile of a seed, None for three of eight."""
    if seed % 8 == 5:
        return sorted(APART)[seed // 8 % len(APART)]
    return None if seed % 2 else sorted(PROFILES)[seed // 2 % len(PROFILES)]


#: Switches of the broker that are turned in some runs, away from their defaults.
SWITCHES = {
    "batch_index_ack": False,
    "subscription_key_shared_use_consistent_hashing": False,
    "subscription_key_shared_spread_keyless": True,
    "subscription_key_shared_join_at_read_position": True,
}


def varied(seed: int) -> bool:
    """Whether the run of a seed, one of four, has switches and policies that are rarely used."""
    return seed % 4 == 3


def switches(seed: int) -> dict[str, bool]:
    """Return the switches of the broker that are turned in the run of a seed."""
    rng = random.Random(f"switches {seed}")
    return {name: value for name, value in SWITCHES.items() if varied(seed) and rng.random() < 0.5}


#: Operations that every run may contain.
TROUBLES = ("crash", "disk", "reads", "clocks", "slow", "hostile")
#: Operations of the other runs, if they are asked for: less is claimed after them.
DAMAGE = ("damage", "metadata")


def damaged(seed: int) -> bool:
    """Whether bits flip and segments are lost in the run of a seed, one of sixteen."""
    return seed % 16 == 15


def generate(seed: int, length: int, troubles: tuple[str, ...] = TROUBLES) -> list[Operation]:
    """Return the history of a seed; ``troubles`` name what may go wrong in it."""
    rng = random.Random(f"history {seed}")
    weights: dict[str, float] = dict(_TRAFFIC)
    weights.update(_ADMINISTRATION)
    for trouble, added in _TROUBLES.items():
        if trouble not in troubles:
            continue
        if rng.random() < (0.7 if trouble == "crash" else 0.33):
            for kind, weight in added.items():
                weights[kind] = weights.get(kind, 0.0) + weight
    if damaged(seed):
        # Always, and nothing drawn: the other runs stay as they are.
        weights.update(_TROUBLES["damage"])
    of_profile = profile(seed)
    if of_profile is not None:
        weights.update({**PROFILES, **APART}[of_profile])
    kinds, likely = list(weights), list(weights.values())
    clients, topics = rng.randint(1, CLIENTS), rng.randint(1, TOPICS)
    operations = []
    for kind in rng.choices(kinds, likely, k=length):
        then = rng.choice([0, 1, 5, 20, 60, 110, 250, 1200]) if rng.random() < 0.5 else -rng.randrange(25)
        operations.append(Operation(kind, rng.randrange(clients), rng.randrange(topics), rng.getrandbits(32), then))
    for kind, some in _ADDED.items():
        _add(seed, kind, some, operations, clients, topics)
    return operations


def _add(seed: int, kind: str, some: _Some, operations: list[Operation], clients: int, topics: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    if rng.random() >= some.runs:
        return
    for _ in range(rng.randint(1, some.most)):
        actors = rng.randrange(clients), rng.randrange(topics)
        operation = Operation(kind, *actors, rng.getrandbits(32), -rng.randrange(25))
        operations.insert(rng.randint(0, len(operations)), operation)
