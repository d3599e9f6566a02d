"""Costs of authorization: memory of the grants, time of a decision, time until a changed grant has its effect.

Run it with ``benchmarks/run-authorization``; see its ``--help``.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import Need, Resource, on_topic
from heliograph_broker.security.identity import Identity

from tests.integration.http_api import HttpApi, running_api

_RIGHTS: Final = {"superusers": ["root"], "proxies": ["gate"]}
_REPETITIONS: Final = 5
_DECISIONS: Final = 20_000


def _grants(namespace: str, users: range, count: int) -> dict[str, Any]:
    """Return ``count`` grants on a namespace, its topics and prefixes of their names, to users one after the other."""
    found: dict[str, Any] = {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}}
    for number in range(count):
        role = f"user-{users[number % len(users)]}"
        if number % 10 == 0 and role not in found["namespace_auth"]:
            found["namespace_auth"][role] = ["produce", "consume"]
        else:
            star = "*" if number % 10 == 1 else ""
            topic = f"persistent://{namespace}/topic-{number}-{'x' * (number % 7)}{star}"
            found["destination_auth"].setdefault(topic, {})[role] = ["consume"]
    return found


def _resident_bytes() -> int:
    """Return the resident memory of this process (Linux)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def _furnish(api: HttpApi, users: int, grants: int, namespaces: int) -> list[str]:
    """Create the namespaces with their grants, and return their names."""
    api.broker.tenants.create("shop", TenantRecord(admin_roles=["boss"], allowed_clusters=["standalone"]))
    names = [f"shop/n{number}" for number in range(namespaces)]
    of_each, users_of_each = grants // namespaces, max(1, users // namespaces)
    for number, name in enumerate(names):
        own = range(number * users_of_each, (number + 1) * users_of_each)
        policies = Policies(kept={"auth_policies": _grants(name, own, of_each)})
        api.broker.namespaces.create(name, NamespaceRecord(policies=policies))
    return names


def _microseconds(work: Callable[[], object], times: int) -> float:
    """Return the median time of one call (µs)."""
    taken = []
    for _ in range(_REPETITIONS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        taken.append((time.perf_counter() - began) / times * 1e6)
    return statistics.median(taken)


def _decisions(authorizer: Authorizer, namespace: str, first_user: int) -> dict[str, float]:
    """Return the time of a decision (µs) by the rule that decides."""

    def asked(role: str, need: Need, on: Resource) -> float:
        identity = Identity(role, "token")
        return _microseconds(lambda: authorizer.decide(identity, need, on), _DECISIONS)

    def topic(local: str) -> Resource:
        return on_topic(TopicName.parse(f"persistent://{namespace}/{local}"), "subscription")

    return {
        "superuser": asked("root", Need.CONSUME, topic("topic-2-xx")),
        "administrator": asked("boss", Need.CONSUME, topic("topic-2-xx")),
        "namespace": asked(f"user-{first_user}", Need.CONSUME, topic("any")),
        "topic": asked(f"user-{first_user + 2}", Need.CONSUME, topic("topic-2-xx")),
        "prefix": asked(f"user-{first_user + 1}", Need.CONSUME, topic("topic-1-x-and-more")),
        "denied": asked("nobody", Need.CONSUME, topic("topic-2-xx")),
    }


async def _change_ms(api: HttpApi, namespace: str) -> tuple[float, float]:
    """Return how long it takes to grant something by REST, and then the first decision (median, ms)."""
    granted, decided = [], []
    authorizer = api.security.authorizer if api.security is not None else Authorizer(api.broker.directory, [])
    on = on_topic(TopicName.parse(f"persistent://{namespace}/topic-2-xx"))
    for number in range(_REPETITIONS):
        path = f"/admin/v2/namespaces/{namespace}/permissions/new-{number}"
        began = time.perf_counter()
        answer = await api.request("POST", path, '["produce"]', Role="root")
        granted.append((time.perf_counter() - began) * 1e3)
        assert answer.status == 204, answer
        began = time.perf_counter()
        allowed = authorizer.decide(Identity(f"new-{number}", "token"), Need.PRODUCE, on).allowed
        decided.append((time.perf_counter() - began) * 1e3)
        assert allowed
    return statistics.median(granted), statistics.median(decided)


async def _measure(users: int, grants: int, namespaces: int) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        async with running_api(Path(directory) / "data", authorization=_RIGHTS) as api:
            assert api.security is not None
            before = _resident_bytes()
            names = _furnish(api, users, grants, namespaces)
            kept = _resident_bytes() - before
            authorizer = api.security.authorizer
            nobody = Identity("nobody", "token")
            for name in names:
                on = on_topic(TopicName.parse(f"persistent://{name}/topic-2-xx"))
                authorizer.decide(nobody, Need.PRODUCE, on)
            ready = _resident_bytes() - before - kept
            times = _decisions(authorizer, names[0], 0)
            changed, decided = await _change_ms(api, names[0])
    costs = [f"{value:.1f}" for value in times.values()]
    counts = [f"{users:,}", f"{grants:,}", f"{namespaces:,}"]
    return [*counts, f"{kept / 2**20:.0f}", f"{ready / 2**20:.1f}", *costs, f"{changed:.1f}", f"{decided:.2f}"]


def main(
    users: Annotated[int, typer.Option(min=100, help="Number of roles.")] = 10_000,
    grants: Annotated[int, typer.Option(min=100, help="Number of grants to them, in all.")] = 100_000,
    namespaces: Annotated[
        str, typer.Option(help="Numbers of namespaces that share the grants, with commas.")
    ] = "100,1",
) -> None:
    """Measure, on this machine, in one process with the broker."""
    headings = ["users", "grants", "namespaces", "kept (MiB)", "to decide (MiB)"]
    headings += [f"{rule} (µs)" for rule in ("superuser", "administrator", "namespace", "topic", "prefix", "denied")]
    headings += ["change by REST (ms)", "first decision after it (ms)"]
    print(f"| {' | '.join(headings)} |\n{'|---' * len(headings)}|", flush=True)
    for number in namespaces.split(","):
        print(f"| {' | '.join(asyncio.run(_measure(users, grants, int(number))))} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
