"""No setting and no policy is a word only: code other than its definition reads each of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.policies.policy_table import POLICY_FIELDS
from heliograph_api.resources.cluster_spec import BrokerClusterSpec, StorageSpec
from pydantic import BaseModel
from pydantic.alias_generators import to_snake

PROJECT = Path(__file__).parents[2]

#: Policies that are kept and shown and do nothing here, with the reason.
SHOWN_ONLY = {"delayed_delivery_tick_ms": "messages are delivered on time, whatever the tick"}


def _reads(*names: str) -> Iterator[tuple[str, str]]:
    """Yield (last name of what it is read from, attribute) for each attribute that modules read."""
    for name in names:
        path = PROJECT / name
        for one in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(one.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    owner = node.value
                    yield getattr(owner, "attr", getattr(owner, "id", "")), node.attr
                elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
                    # The operator reads some fields before the document is known to be valid.
                    yield "", to_snake(str(getattr(node.args[0], "value", "")))


BY_BROKER = set(_reads("broker/heliograph_broker"))
#: Only packages that enforce policies: REST and the command line show them all.
BY_CORE = {
    name
    for _, name in _reads(
        *(f"broker/heliograph_broker/{part}" for part in ("messaging", "server", "usecases")),
        # What holds for one subscription.
        "api/heliograph_api/policies/policies.py",
    )
}
BY_OPERATOR = {name for _, name in _reads("operator", "broker/heliograph_broker/usecases")}


@pytest.mark.parametrize("setting", BrokerConfig.__struct_fields__)
def test_every_setting_of_a_broker_is_read(setting: str) -> None:
    assert ("config", setting) in BY_BROKER


@pytest.mark.parametrize("policy", [policy for policy in POLICY_FIELDS if policy not in SHOWN_ONLY])
def test_every_policy_is_read_by_the_core(policy: str) -> None:
    assert policy in BY_CORE


def test_what_is_shown_only_is_not_read_by_the_core() -> None:
    assert not BY_CORE & set(SHOWN_ONLY)


@pytest.mark.parametrize("model", [BrokerClusterSpec, StorageSpec])
def test_every_field_of_a_cluster_is_read(model: type[BaseModel]) -> None:
    assert sorted(set(model.model_fields) - BY_OPERATOR) == []
