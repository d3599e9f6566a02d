"""The admin tools whose verbs are tested: how each is started, and which verbs it has."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.support import admin_library, go_admin, pulsar_admin
from tests.support.verbs import Tool


@dataclass(frozen=True)
class VerbTool:
    """A tool or library with tables in ``tests/verbs``."""

    name: str
    #: The page's sentences on it.
    about: str
    #: What keeps it from running here, None if nothing does.
    missing: Callable[[], str | None]
    #: Start it, with a directory for its files, for the broker at an HTTP and a service URL.
    start: Callable[[Path, str, str], AbstractContextManager[Tool]]
    #: List every verb that it has, as its command lines begin: two words.
    verbs: Callable[[], set[str]]
    #: The table that a verb belongs to, of those with these names; scripts of others may use it as well.
    table_of: Callable[[str, frozenset[str]], str]
    #: The tables of the verbs that administrators' scripts use.
    everyday: tuple[str, ...]


_OF_SUBSCRIPTIONS = (
    *("create-subscription", "subscription-properties", "replicated-subscription", "unsubscribe"),
    *("skip", "peek", "reset-cursor", "expire-", "clear-backlog", "analyze"),
)


def _table_of_command(what: str, tables: frozenset[str]) -> str:
    group, name = what.split()
    if group == "topics" and (name == "subscriptions" or any(part in name for part in _OF_SUBSCRIPTIONS)):
        return "subscriptions"
    if group in ("persistent", "non-persistent"):
        return "deprecated"
    return group if group in tables else "others"


PULSAR_ADMIN = VerbTool(
    name="pulsar-admin",
    about="The Java tool, as released with Pulsar. Verbs of `topics` that work on subscriptions are listed with these.",
    missing=pulsar_admin.missing,
    start=pulsar_admin.PulsarAdmin,
    verbs=pulsar_admin.verbs_of_the_tool,
    table_of=_table_of_command,
    everyday=("brokers", "clusters", "tenants", "namespaces", "topics", "topicPolicies", "subscriptions"),
)


PULSARADMIN_GO = VerbTool(
    name="pulsaradmin-go",
    about=(
        "The Go library of `pulsarctl`, part of the official Go client: every method of its interfaces, and of two that"
        " differ by a context one. The statuses of refusals are compared, too."
    ),
    missing=go_admin.missing,
    start=go_admin.GoAdmin,
    verbs=go_admin.methods_of_the_library,
    table_of=lambda what, _: what.split()[0],
    everyday=("Brokers", "Clusters", "Tenants", "Namespaces", "Topics", "TopicPolicies", "Subscriptions"),
)


def _table_of_java(what: str, tables: frozenset[str]) -> str:
    group, name = what.split()
    if group == "topics" and _ON_A_SUBSCRIPTION.fullmatch(name):
        return "subscriptions"
    return group if group in tables else "others"


_ON_A_SUBSCRIPTION = re.compile(
    r"(create|delete|get|update)Subscription(s|Properties)?|[gs]etReplicatedSubscriptionStatus"
    r"|(skip|peek|expire)\w*Messages\w*|resetCursor|analyzeSubscriptionBacklog"
)
ADMIN_LIBRARY = VerbTool(
    name="admin-library",
    about=(
        "Pulsar's admin library 4.2.4 for Java: every method of its interfaces. Overloads are one method, and an"
        " asynchronous twin is not listed. The statuses of refusals are compared, too. Methods of `topics` that work"
        " on subscriptions are listed with these."
    ),
    missing=pulsar_admin.missing,
    start=admin_library.AdminLibrary,
    verbs=admin_library.methods_of_the_library,
    table_of=_table_of_java,
    everyday=("brokers", "clusters", "tenants", "namespaces", "topics", "topicPolicies", "subscriptions"),
)
TOOLS = (PULSAR_ADMIN, PULSARADMIN_GO, ADMIN_LIBRARY)
