"""The table of policies: nothing of the core is missing in it, and what is set is what is read back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policies import Policies
from heliograph_broker.http.namespaces.namespace_document import NamespaceDocument
from heliograph_broker.http.policies.kept_settings import KEPT
from heliograph_broker.http.policies.policy_description import NAMESPACE, TOPIC, Level, PolicyPath
from heliograph_broker.http.policies.policy_table import PATHS, POLICIES
from heliograph_broker.http.policies.unsupported_policies import REFUSED
from heliograph_broker.messaging.base.errors import PreconditionFailed

CONFIG = BrokerConfig()


def _example(policy: PolicyPath) -> Any:
    """Return the example shown to people who send no body, without its unit."""
    text = policy.example.partition(" (")[0] if policy.example.endswith(")") else policy.example
    return msgspec.json.decode(text, type=policy.document)


def test_every_policy_of_the_core_has_a_path() -> None:
    described = [field for policy in POLICIES for field in policy.fields]
    assert len(described) == len(set(described))
    elsewhere = {"backlog_quota_size", "backlog_quota_age", "subscription_dispatch_rates", "subscription_policies"} | {
        "kept"
    }
    assert set(described) | elsewhere == set(Policies.__struct_fields__)


def test_paths_and_names_are_each_policys_own() -> None:
    namespaces = [policy.namespace for policy in POLICIES]
    topics = [path for policy in POLICIES for path in policy.topic]
    keys = [policy.key for policy in POLICIES]
    for names in (namespaces, topics, keys):
        assert len(names) == len(set(names))
        assert "" not in names
    assert set(keys) <= set(NamespaceDocument.__struct_fields__)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.key)
@pytest.mark.parametrize("level", [NAMESPACE, TOPIC])
def test_the_example_can_be_set_and_is_read_back(policy: PolicyPath, level: str) -> None:
    policies = Policies()
    assert policy.read(policies) is None
    example = _example(policy)
    policy.write(policies, example, Level(level, CONFIG))
    expected = sorted(example) if isinstance(example, list) else example
    assert policy.read(policies) == expected
    assert any(getattr(policies, field) is not None for field in policy.fields)
    for field in policy.fields:
        setattr(policies, field, None)
    assert policies == Policies()


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.key)
def test_what_holds_without_any_is_a_document_of_the_policy(policy: PolicyPath) -> None:
    otherwise = policy.otherwise(CONFIG)
    if policy is PATHS["retention"]:
        # 0/0 would be another thing: data that goes at once.
        assert otherwise is None
        return
    encoded = msgspec.json.encode(otherwise)
    assert msgspec.json.decode(encoded, type=policy.document) == otherwise


NUMBERS = [
    policy for policy in POLICIES if isinstance(_example(policy), int) and not isinstance(_example(policy), bool)
]


@pytest.mark.parametrize("policy", NUMBERS, ids=lambda policy: policy.key)
def test_a_figure_below_none_is_refused_and_changes_nothing(policy: PolicyPath) -> None:
    for level in (NAMESPACE, TOPIC):
        policies = Policies()
        with pytest.raises(PreconditionFailed):
            policy.write(policies, -2, Level(level, CONFIG))
        assert policies == Policies()


@pytest.mark.parametrize("policy", NUMBERS, ids=lambda policy: policy.key)
def test_the_largest_figure_a_client_may_send_fits_into_the_core(policy: PolicyPath) -> None:
    if policy.key == "max_message_size":
        return
    policies = Policies()
    policy.write(policies, 2**31 - 1, Level(TOPIC, CONFIG))
    assert policy.read(policies) == 2**31 - 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(policies), type=Policies) == policies


def test_the_guide_lists_every_path() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    section = guide.split("\n## Policies\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| ")]
    # The text in brackets says what is read there.
    listed = [[re.findall(r"`(\w+)`", cell.partition("(")[0]) for cell in row] for row in rows]
    for policy in POLICIES:
        assert [[policy.namespace], list(policy.topic)] in listed, policy.key
    for kept in KEPT:
        for path in (kept.namespace, kept.topic):
            assert not path or f"`{path}`" in section, path
    for path in REFUSED:
        assert f"`{path}`" in section, path
