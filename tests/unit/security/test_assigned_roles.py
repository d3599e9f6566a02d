"""Clients whose credentials prove an identity for which a role is set."""

from __future__ import annotations

import msgspec
import pytest
from heliograph_api.resources.role_state import ProvenIdentity
from heliograph_broker.security.authentication.authenticator import Authenticator
from heliograph_broker.security.authentication.provider import Credentials, Provider, Unauthenticated
from heliograph_broker.security.identity import Identity


class Certificates(Provider):
    """Takes the name of a host and, after a colon, the common name for a certificate."""

    method = "tls"

    async def authenticate(self, credentials: Credentials) -> Identity:
        host, _, name = credentials.data.decode().partition(":")
        proven = [f"CN={name}"] if name else []
        return Identity(
            name, "tls", proven=tuple(ProvenIdentity("certificate", each) for each in [*proven, f"DNS:{host}"])
        )


class Set:
    """The roles that are set, by the names of identities."""

    def __init__(self, **roles: str) -> None:
        self.roles = {f"DNS:{host}": role for host, role in roles.items()}

    def __call__(self, proven: tuple[ProvenIdentity, ...]) -> str:
        return next((self.roles[each.name] for each in proven if each.name in self.roles), "")


async def shown(authenticator: Authenticator, text: str) -> Identity:
    return await authenticator.authenticate("tls", Credentials(text.encode()))


async def test_a_role_that_is_set_takes_the_place_of_the_own_name() -> None:
    authenticator = Authenticator([Certificates()], assigned=Set(host="shop/billing"))
    assert (await shown(authenticator, "host:billing")).role == "shop/billing"
    assert (await shown(authenticator, "host")).role == "shop/billing"
    assert (await shown(authenticator, "other:billing")).role == "billing"


async def test_without_a_name_and_a_role_nobody_is_known() -> None:
    authenticator = Authenticator([Certificates()], assigned=Set(host="shop/billing"))
    with pytest.raises(Unauthenticated, match="name no role, and none is set for what they prove"):
        await shown(authenticator, "other")
    assert authenticator.attempts["tls", False] == 1


async def test_nobody_takes_the_role_of_an_administrator() -> None:
    roles = Set(host="shop/billing")
    authenticator = Authenticator([Certificates()], assigned=roles, fixed=["admin"])
    admin = await shown(authenticator, "host:admin")
    assert (admin.role, admin.assigned) == ("admin", False)
    assert not authenticator.has_another_role(admin)


async def test_a_change_shows_on_those_that_are_connected() -> None:
    roles = Set()
    authenticator = Authenticator([Certificates()], assigned=roles, proxies=["gate"])
    own = await shown(authenticator, "host:billing")
    assert not authenticator.has_another_role(own)
    roles.roles["DNS:host"] = "shop/billing"
    assert authenticator.has_another_role(own)
    assigned = await shown(authenticator, "host:billing")
    assert not authenticator.has_another_role(assigned)
    # The proxy's own role decides as well.
    proxied = Identity("somebody", "tls", vouched=True, via="gate", proxy=own)
    assert authenticator.has_another_role(proxied)
    assert not authenticator.has_another_role(msgspec.structs.replace(proxied, proxy=assigned))
    roles.roles["DNS:host"] = "shop/orders"
    assert authenticator.has_another_role(assigned)
    roles.roles.clear()
    assert authenticator.has_another_role(assigned)
    assert not authenticator.has_another_role(own)
    assert not authenticator.has_another_role(Identity("billing", "token"))


async def test_a_proxy_whose_role_is_taken_while_its_client_is_verified_speaks_for_nobody() -> None:
    roles = Set(host="gate")

    class Slow(Certificates):
        method = "token"

        async def authenticate(self, credentials: Credentials) -> Identity:
            roles.roles.clear()
            return Identity("somebody", "token")

    authenticator = Authenticator([Certificates(), Slow()], assigned=roles, proxies=["gate"])
    gate = await shown(authenticator, "host:billing")
    with pytest.raises(Unauthenticated, match="another role by now: connect again"):
        await authenticator.through_proxy(gate, "somebody", "token", Credentials(b"x"))
