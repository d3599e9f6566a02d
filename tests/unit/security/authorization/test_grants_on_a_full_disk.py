"""Grants, and their ends, that the disk does not take: nothing is confirmed, and what was confirmed is never lost."""

from __future__ import annotations

import errno

import pytest
from heliograph_api.policies.policies import Policies
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import Need, on_namespace
from heliograph_broker.security.identity import Identity

from tests.support.core import Core
from tests.support.failing_metadata import failing_metadata

NAMESPACE = "public/default"


def may_consume(core: Core) -> bool:
    client, on = Identity("billing", "token"), on_namespace(NAMESPACE)
    return Authorizer(core.broker.directory, []).explain(client, Need.CONSUME, on).allowed


def change(core: Core, *, granted: bool) -> Exception | None:
    """Grant or revoke; return the error that the administrator is answered with."""
    grants = {"auth_policies": {"namespace_auth": {"billing": ["consume"]}}}
    answers: list[Exception | None] = []
    core.broker.namespaces.set_policies(NAMESPACE, Policies(kept=grants if granted else None))
    core.broker.store.writer.after_commit(answers.append)
    core.commit()
    [answer] = answers
    return answer


@pytest.mark.parametrize("granted", [True, False])
def test_a_change_that_is_not_stored_is_not_confirmed_and_a_crash_takes_it_back(core: Core, granted: bool) -> None:
    assert change(core, granted=not granted) is None
    with failing_metadata(OSError(errno.ENOSPC, "No space left on device")):
        assert change(core, granted=granted) is not None
        # The broker goes on trying to store it, and a right that an administrator has taken away is gone meanwhile.
        assert may_consume(core) == granted
    core.crash()
    assert may_consume(core) != granted


@pytest.mark.parametrize("granted", [True, False])
def test_a_change_that_is_not_stored_is_stored_once_there_is_room(core: Core, granted: bool) -> None:
    assert change(core, granted=not granted) is None
    with failing_metadata(OSError(errno.ENOSPC, "No space left on device")):
        assert change(core, granted=granted) is not None
    core.broker.store.writer.retry()
    core.commit()
    core.crash()
    assert may_consume(core) == granted
