"""Decisions about rights against a model that looks at every grant, whatever was asked and changed before."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

from heliograph_api.policies.policies import Policies
from heliograph_api.values.names import TopicName
from heliograph_broker.messaging.base.records import NamespaceRecord, TenantRecord
from heliograph_broker.messaging.topic.directory import Directory
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import EVERY_SUBSCRIPTION, Need, Resource, on_tenant
from heliograph_broker.security.identity import Identity
from hypothesis import given, settings
from hypothesis import strategies as st

ROLES = ("a", "ab", "gate")
ACTIONS = ("produce", "consume", "admin", "functions")
NAMESPACES = ("t/n", "t/m")
LOCALS = ("", "o", "or", "ord", "o*", "or-partition-1")
SUBSCRIPTIONS = ("", "s", "a-1", EVERY_SUBSCRIPTION)
#: (role, proxy that speaks for it)
CLIENTS = (
    *((role, "") for role in (*ROLES, "root", "")),
    ("a", "gate"),
    ("root", "gate"),
    ("a", "ab"),
    ("gate", "gate"),
)
_MEETS = {
    Need.LOOKUP: {"produce", "consume", "admin"},
    Need.PRODUCE: {"produce", "admin"},
    Need.CONSUME: {"consume", "admin"},
    Need.ADMIN: {"admin"},
}


class Question(NamedTuple):
    """Whether a client may do something."""

    role: str
    via: str
    need: Need
    on: Resource


def _resource(namespace: str, local: str, subscription: str) -> Resource:
    tenant = namespace.partition("/")[0]
    if not local:
        return Resource(tenant, namespace, "", subscription)
    return Resource(tenant, namespace, str(TopicName.parse(f"persistent://{namespace}/{local}").base), subscription)


_OBJECTS = (
    on_tenant("t"),
    on_tenant(""),
    *(_resource(*each) for each in product(NAMESPACES, LOCALS, SUBSCRIPTIONS)),
)
_SETTLED = (Need.NOTHING, Need.IDENTITY, Need.MONITOR, Need.BACKUP, Need.SUPERUSER)
#: Everything that can be asked; what no grant and no tenant changes, once.
QUESTIONS = (
    *(Question(*client, need, on) for client, need, on in product(CLIENTS, _MEETS, _OBJECTS)),
    *(Question(*client, need, _OBJECTS[-1]) for client, need in product(CLIENTS, _SETTLED)),
)

_role = st.sampled_from(ROLES)
_actions = st.dictionaries(_role, st.lists(st.sampled_from(ACTIONS), max_size=2, unique=True), min_size=1, max_size=2)


def _kept(namespace: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw what a namespace keeps; its topics are its own, as the REST API has it."""
    topics = st.sampled_from([f"persistent://{namespace}/{name}" for name in ("o", "or", "*", "o*", "or*", "ord*")])
    grants = st.fixed_dictionaries(
        {"destination_auth": st.dictionaries(topics, _actions, min_size=2, max_size=4)},
        optional={
            "namespace_auth": _actions,
            "subscription_auth_roles": st.dictionaries(
                st.sampled_from(("s", "a-1")), st.lists(_role, max_size=2), min_size=1, max_size=2
            ),
        },
    )
    modes = st.sampled_from([{}, {}, {"subscription_auth_mode": "Prefix"}, {"subscription_auth_mode": "None"}])
    return st.builds(lambda given, mode: {"auth_policies": given} | mode, grants, modes) | modes


#: A new record of a namespace, the administrators of the tenant, or None for what is deleted.
_changes = st.one_of(
    *(st.tuples(st.just(name), _kept(name)) for name in NAMESPACES),
    st.tuples(st.sampled_from((*NAMESPACES, "t")), st.none()),
    st.tuples(st.just("t"), st.lists(_role, max_size=1)),
)
Change = tuple[str, dict[str, Any] | list[str] | None]


class Model:
    """All grants as a list, and the rules as the guide has them."""

    def __init__(self) -> None:
        self.admins: dict[str, list[str]] = {}
        self.kept: dict[str, dict[str, Any]] = {}

    def _granted(self, role: str, namespace: str, topic: str) -> set[str]:
        grants = self.kept.get(namespace, {}).get("auth_policies", {})
        found = set(grants.get("namespace_auth", {}).get(role, []))
        for name, roles in grants.get("destination_auth", {}).items():
            if topic and (name == topic or (name.endswith("*") and topic.startswith(name[:-1]))):
                found |= set(roles.get(role, []))
        return found

    def allows(self, asked: Question) -> bool:
        if not asked.via:
            return asked.role != "gate" and self._allows(asked.role, asked)
        return (
            asked.via == "gate"
            and asked.role != "gate"
            and all(self._allows(one, asked) for one in (asked.via, asked.role))
        )

    def _allows(self, role: str, asked: Question) -> bool:
        need, on = asked.need, asked.on
        if need is Need.NOTHING or not role or role == "root" or need is Need.IDENTITY:
            return need is Need.NOTHING or bool(role)
        if need is Need.MONITOR:
            return role == "ab"
        if need is Need.BACKUP:
            return role == "a"
        if need is Need.SUPERUSER:
            return False
        if role in self.admins.get(on.tenant, []):
            return True
        actions = self._granted(role, on.namespace, on.topic)
        if not actions & _MEETS[need]:
            return False
        return need is not Need.CONSUME or "admin" in actions or not on.subscription or self._may_use(role, on)

    def _may_use(self, role: str, on: Resource) -> bool:
        kept = self.kept[on.namespace]
        restricted = kept.get("auth_policies", {}).get("subscription_auth_roles", {})
        named = list(restricted) if on.subscription == EVERY_SUBSCRIPTION else [on.subscription]
        if any(restricted.get(name) and role not in restricted[name] for name in named):
            return False
        return kept.get("subscription_auth_mode") != "Prefix" or on.subscription.startswith(role)


def _apply(change: Change, directory: Directory, model: Model) -> None:
    """Make a change as the broker does: a changed record is a new one."""
    name, record = change
    if record is None:
        for known in (directory.tenants, directory.namespaces, model.admins, model.kept):
            known.pop(name, None)
    elif isinstance(record, list):
        directory.tenants[name], model.admins[name] = TenantRecord(admin_roles=record), record
    else:
        directory.namespaces[name] = NamespaceRecord(policies=Policies(kept=record or None))
        model.kept[name] = record


@settings(max_examples=60)
@given(st.lists(_changes, min_size=1, max_size=6))
def test_decisions_are_those_of_the_rules(changes: list[Change]) -> None:
    directory, model = Directory(), Model()
    authorizer = Authorizer(directory, ["root"], ["gate"], ["ab"], ["a"])
    for change in changes:
        _apply(change, directory, model)
        for asked in QUESTIONS:
            decision = authorizer.decide(Identity(asked.role, "token", via=asked.via), asked.need, asked.on)
            assert decision.allowed is model.allows(asked), (asked, decision.rule)
            assert decision.rule
    asked_in_all = sum(authorizer.allowed.values()) + sum(authorizer.denied.values())
    assert asked_in_all == len(changes) * len(QUESTIONS)
