"""Settings of roles: durable, and each identity proves one role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from heliograph_api.resources.role_state import ProvenIdentity, RoleSettings, service_account
from heliograph_broker.messaging.base.errors import Conflict

from tests.support.core import Core

CERTIFICATE = ProvenIdentity("certificate", "CN=billing")
SERVICE_ACCOUNT = service_account("shop", "billing")
TOKEN = ProvenIdentity("oidc", "billing", "https://id.example.org")


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    running = Core(tmp_path / "data")
    yield running
    running.close()


def test_an_identity_has_the_role_that_is_set_for_it_also_after_a_restart(core: Core) -> None:
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE, SERVICE_ACCOUNT]))
    core.broker.roles.put("shop/orders", RoleSettings([TOKEN]))
    for _ in range(2):
        roles = core.broker.roles
        assert roles.role_of([SERVICE_ACCOUNT]) == "shop/billing"
        assert roles.role_of([ProvenIdentity("certificate", "CN=other"), TOKEN]) == "shop/orders"
        assert roles.role_of([ProvenIdentity("oidc", "billing", "https://other.example.org")]) == ""
        assert roles.role_of([]) == ""
        core.restart()


def test_what_is_not_set_any_more_is_gone(core: Core) -> None:
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE, SERVICE_ACCOUNT]))
    core.broker.roles.put("shop/billing", RoleSettings([SERVICE_ACCOUNT]))
    assert core.broker.roles.role_of([CERTIFICATE]) == ""
    core.broker.roles.put("shop/orders", RoleSettings([CERTIFICATE]))
    core.broker.roles.delete("shop/billing")
    core.broker.roles.delete("nobody")
    core.restart()
    assert core.broker.roles.role_of([SERVICE_ACCOUNT]) == ""
    assert core.broker.roles.settings == {"shop/orders": RoleSettings([CERTIFICATE])}


def test_an_identity_proves_one_role(core: Core) -> None:
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE]))
    with pytest.raises(Conflict, match="certificate CN=billing proves the role shop/billing already"):
        core.broker.roles.put("shop/orders", RoleSettings([TOKEN, CERTIFICATE]))
    assert core.broker.roles.role_of([TOKEN]) == ""
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE, TOKEN]))
    assert core.broker.roles.role_of([TOKEN]) == "shop/billing"


def test_only_a_change_makes_others_look_at_rights_again(core: Core) -> None:
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE]))
    seen = core.broker.directory.rights_version
    core.broker.roles.put("shop/billing", RoleSettings([CERTIFICATE]))
    core.broker.roles.delete("nobody")
    assert core.broker.directory.rights_version == seen
    core.broker.roles.delete("shop/billing")
    assert core.broker.directory.rights_version > seen
