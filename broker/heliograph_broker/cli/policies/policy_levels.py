"""The policies that commands know at the level of namespaces and of topics, by their names in ``pulsar-admin``.

They are the rows of the shared table of policies; here is which options each kind has, and what ``pulsar-admin`` does
in ways of its own. Each makes get-, set- and remove- commands; :mod:`.policy_commands` makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from heliograph_api.policies import policy_kinds as kinds
from heliograph_api.policies.policy_field import Command, PolicyField, RestPath
from heliograph_api.policies.policy_table import POLICY_FIELDS

from heliograph_broker.cli.base.values import (
    bare_minutes,
    shown_ttl,
    size_bytes,
    time_seconds,
    topic_name,
    ttl_milliseconds,
)

from .policy_flags import (
    AUTO_TOPIC,
    COMPATIBILITY,
    DELAYED,
    DISPATCH,
    INACTIVE,
    PUBLISH,
    QUOTA,
    RETENTION,
    SUBSCRIBE,
    SWITCH,
    TYPES,
    Flag,
    Policy,
    Reader,
    Values,
    auto_topic_body,
    delayed_body,
    dispatch_body,
    enabled,
    inactive_body,
    only,
    publish_body,
    quota_body,
    retention_body,
    subscribe_body,
    whole,
)


class _Options(NamedTuple):
    """The arguments of a set command: its options, the body made from them, and an example."""

    flags: tuple[Flag, ...]
    body: Callable[[Values], Any]
    example: str


def _one(names: tuple[str, ...], help_text: str, read: Reader, metavar: str, example: str, query: str = "") -> _Options:
    flag = Flag("value", names, help_text, read, metavar, query=query)
    return _Options((flag,), only("value"), f"{names[0]} {example}")


def _options(field: str, row: PolicyField, names: tuple[str, ...], query: str) -> _Options:
    """Return the options of a row; ``names`` are those of its single one."""
    kind = row.kind
    if field in _PULSAR_ADMINS:
        return _PULSAR_ADMINS[field]
    if kind in _DOCUMENTS:
        return _DOCUMENTS[kind]
    if kind is kinds.SWITCH:
        return _Options(SWITCH, enabled, row.command.example if row.command is not None else "")
    if kind is kinds.COUNT:
        return _one(names, f"M{row.title[1:]}; 0: no limit.", whole, "N", "10")
    if kind is kinds.SIZE_LIMIT:
        return _one(names, "Bytes: 512K, 1M; 0: no limit.", size_bytes, "SIZE", "1M")
    if kind is kinds.THRESHOLD:
        return _one(names, "Bytes: 10M, 1G; 0: never.", size_bytes, "SIZE", "100M")
    if kind is kinds.TOPIC_NAME:
        example = "acme/shop/expired"
        return _one(names or ("--topic", "-t"), "Dead-letter topic; '': none.", topic_name, "TOPIC", example)
    if kind is kinds.UNUSED_FOR_OR_ZERO:
        return _one(names or ("--time", "-t"), "Time: 60 (minutes), 7d; 0: never.", bare_minutes, "TIME", "7d", query)
    if kind is kinds.DURATION:
        times = "Time: 120 (s), 2h, 500ms; 0: never; 0ms: expires at once if it is not delivered at once."
        return _one(names or ("--time", "-t"), times, ttl_milliseconds, "TIME", "120")
    never = "0" if row.default == 0 else "-1"
    example = "30d" if kind is kinds.UNUSED_FOR else "120"
    times = f"Time: {'3600 (s), 7d' if kind is kinds.UNUSED_FOR else '120 (s), 2h'}; {never}: never."
    return _one(names or ("--time", "-t"), times, time_seconds, "TIME", example, query)


#: By the core's names: what Pulsar's documents hold that the core has in several fields, or in another way.
_PULSAR_ADMINS: Final = {
    "delayed_delivery": _Options(DELAYED, delayed_body, "--enable --maxDelay 7d"),
    "publish_rate": _Options(PUBLISH, publish_body, "-m 1000 -b 10M"),
    "subscription_dispatch_rate": _Options(DISPATCH, dispatch_body, "-md 100"),
    "auto_subscription_creation": _Options(
        SWITCH, lambda values: {"allowAutoSubscriptionCreation": enabled(values)}, "--disable"
    ),
}
_DOCUMENTS: Final = {
    kinds.RETENTION: _Options(RETENTION, retention_body, "--size 10G --time 3h"),
    kinds.RATE: _Options(DISPATCH, dispatch_body, "-md 1000 -bd 10M"),
    kinds.SUBSCRIBE_RATE: _Options(SUBSCRIBE, subscribe_body, "-sr 10"),
    kinds.INACTIVE_TOPIC: _Options(INACTIVE, inactive_body, "-e -t 7d -m delete_when_no_subscriptions"),
    kinds.SUBSCRIPTION_TYPES: _Options(TYPES, only("types"), "--types Shared,Key_Shared"),
    kinds.SCHEMA_COMPATIBILITY: _Options(COMPATIBILITY, only("compatibility"), "--compatibility BACKWARD"),
    kinds.AUTO_TOPIC_CREATION: _Options(AUTO_TOPIC, auto_topic_body, "--enable --type partitioned -n 4"),
}


def _quota(command: Command, row: PolicyField, name: str, example: str) -> Policy:
    """Return the row of the two backlog quotas, which share their paths."""
    return Policy(
        name,
        row.title,
        "backlogQuota",
        QUOTA,
        quota_body,
        example,
        get_name=f"{name}s",
        get_path="backlogQuotaMap",
        removable=command.removable,
    )


def _shown(rest: RestPath) -> dict[str, Any]:
    """Return how get- shows what it reads, where that is not the answer itself."""
    return {"shown": shown_ttl} if rest.milliseconds else {}


def _of_namespace(field: str, row: PolicyField, command: Command) -> Policy:
    if row.rest is None or row.rest.namespace is None:
        return _quota(command, row, command.namespace, "--limit 2G --policy producer_request_hold")
    made = _options(field, row, command.options, "")
    return Policy(
        command.namespace,
        row.title,
        row.rest.milliseconds or row.rest.namespace,
        made.flags,
        made.body,
        made.example,
        method=row.rest.methods[0],
        removable=command.removable,
        **_shown(row.rest),
    )


def _of_topic(field: str, row: PolicyField, command: Command) -> Policy:
    if row.rest is None:
        example = "--limitTime 3600 --type message_age --policy producer_request_hold"
        return _quota(command, row, command.topic, example)
    query = row.rest.topic_query if not row.rest.milliseconds else ""
    made = _options(field, row, command.topic_options or command.options, query)
    return Policy(
        command.topic,
        row.title,
        row.rest.milliseconds or row.rest.topic[0],
        made.flags,
        None if query else made.body,
        made.example,
        method=row.rest.methods[1],
        removable=command.removable,
        **_shown(row.rest),
    )


def _of_subscription(field: str, row: PolicyField, command: Command) -> Policy:
    if row.rest is None:
        raise ValueError(f"{field} has no path in the REST API")
    if row.kind is kinds.UNUSED_FOR_OR_ZERO:
        # Minutes, and 0 for never, are Pulsar's.
        made = _one(("--time", "-t"), "The time: 3600 (s), 7d; -1 never.", time_seconds, "TIME", "30d")
    else:
        made = _options(field, row, command.topic_options or command.options, "")
    end = row.rest.milliseconds or row.rest.subscription
    return Policy(command.subscription, row.title, end, made.flags, made.body, made.example, **_shown(row.rest))


_COMMANDS: Final = [(field, row, row.command) for field, row in POLICY_FIELDS.items() if row.command is not None]
NAMESPACE_POLICIES: Final = tuple(
    _of_namespace(field, row, command) for field, row, command in _COMMANDS if command.namespace
)
SUBSCRIPTION_POLICIES: Final = tuple(
    _of_subscription(field, row, command) for field, row, command in _COMMANDS if command.subscription
)
TOPIC_POLICIES: Final = tuple(_of_topic(field, row, command) for field, row, command in _COMMANDS if command.topic)
