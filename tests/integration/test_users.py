"""A broker that trusts the operator's keys: its own token, the grants of a User, and a rotation under a client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pulsar
import pytest
from heliograph_api.admin.admin_client import AdminClient, AdminRefused
from heliograph_api.resources.authentication_spec import OPERATOR_ROLE
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.resources.user_spec import PermissionSpec
from heliograph_operator.act.broker_sessions import BrokerSession
from heliograph_operator.decide.signed_tokens import Signer, signer_of
from heliograph_operator.decide.token_keys import PUBLIC, Period, SigningKey, plan_keys, public_data
from heliograph_operator.decide.user_grants import Grants, changes, stated_grants

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, connect, fresh_name
from tests.support.polling import eventually_async
from tests.support.tokens import ask

ROLE = "shop/billing"
HOUR = timedelta(hours=1)
CLUSTER = BrokerCluster.model_validate(
    {
        "apiVersion": "heliograph.dev/v1alpha1",
        "kind": "BrokerCluster",
        "metadata": {"name": "main"},
        "spec": {"authentication": {"enabled": True}},
    }
)


class Keys:
    """The keys of a BrokerCluster, with a file in the place of the mounted Secret."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[SigningKey, ...] = ()
        self.rotate(accepted=())

    def rotate(self, *, accepted: tuple[str, ...], at: datetime | None = None) -> list[str]:
        """Take the next step of the plan, as of a time; return the ids of the keys that are published."""
        period = Period(timedelta(days=30), HOUR)
        published = getattr(self, "_published", ())
        plan = plan_keys(self._keys, published, period, at or datetime.now(UTC), accepted=accepted)
        self._keys, self._published = plan.keys, plan.published
        written = self._path.with_suffix(".new")
        written.write_text(public_data(plan.published)[PUBLIC])
        written.replace(self._path)
        assert plan.signer is not None
        self.signer = signer_of(CLUSTER, plan.keys, plan.signer)
        return [each.id for each in plan.published]

    def signer_with(self, key: str) -> Signer:
        return signer_of(CLUSTER, self._keys, next(each for each in self._keys if each.id == key))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / PUBLIC)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[BrokerProcess]:
    environment = {
        "HELIOGRAPH_AUTH": "token",
        "HELIOGRAPH_TOKEN_PUBLIC_KEY": str(keys._path),
        "HELIOGRAPH_SUPERUSERS": OPERATOR_ROLE,
    }
    with BrokerProcess(tmp_path_factory.mktemp("users") / "data", environment=environment) as running:
        yield running


def signed(keys: Keys, role: str) -> str:
    return keys.signer.sign(role, HOUR, datetime.now(UTC))


def session(broker: BrokerProcess, keys: Keys) -> BrokerSession:
    client = AdminClient(broker.http_url, token=lambda: signed(keys, OPERATOR_ROLE))
    return BrokerSession(broker.http_url, 0.0, client=client)


async def apply(of: BrokerSession, *permissions: dict[str, object]) -> Grants:
    """Give the role these permissions, and return what the broker says that it has."""
    stated = stated_grants(PermissionSpec.model_validate(each) for each in permissions)
    listing = await of.listing(0.0)
    wanted = changes(ROLE, stated, listing.grants.get(ROLE, Grants()), listing.state)
    await of.grant(ROLE, wanted)
    listing = await of.listing(0.0)
    found = listing.grants.get(ROLE, Grants())
    assert changes(ROLE, stated, found, listing.state) == []
    return found


async def test_the_grants_of_a_user_are_those_that_the_broker_has(closed: BrokerProcess, keys: Keys) -> None:
    operator = session(closed, keys)
    try:
        name = fresh_name()
        topic = f"persistent://public/default/{name}"
        async with AdminClient(closed.http_url, token=signed(keys, OPERATOR_ROLE)) as admin:
            await admin.request("PUT", f"/admin/v2/persistent/public/default/{name}")
        found = await apply(
            operator,
            {"namespace": "public/default", "actions": ["produce"]},
            {"topic": topic, "subscriptions": ["a b/c%"], "actions": ["consume"]},
        )
        assert found.namespaces == {"public/default": {"produce"}}
        assert found.topics == {topic: {"consume"}}
        assert found.subscriptions == {("public/default", "a b/c%")}
        assert (await apply(operator)) == Grants()
        with pytest.raises(AdminRefused, match="not found"):
            await apply(operator, {"topic": "public/default/nothing", "actions": ["produce"]})
    finally:
        await operator.close()


async def test_a_client_goes_on_while_keys_rotate(closed: BrokerProcess, keys: Keys) -> None:
    topic = f"persistent://public/default/{fresh_name()}"
    operator = session(closed, keys)
    try:
        await apply(operator, {"namespace": "public/default", "actions": ["produce", "consume"]})
        before = signed(keys, ROLE)
        client = connect(closed.service_url, authentication=pulsar.AuthenticationToken(before))
        producer = client.create_producer(topic)
        producer.send(b"by the first key")
        later = datetime.now(UTC) + timedelta(days=30, minutes=1)
        [old, new] = keys.rotate(accepted=(), at=later)
        # The broker reads the file again by itself.
        probe = keys.signer_with(new).sign(OPERATOR_ROLE, HOUR, datetime.now(UTC))
        version = f"{closed.http_url}/admin/v2/brokers/version"
        await eventually_async(lambda: ask(version, probe).status == 200)
        assert keys.rotate(accepted=(new,), at=later + timedelta(minutes=5)) == [old, new]
        assert keys.signer.key == new
        producer.send(b"still by the first key")
        await operator.listing(0.0)
        again = connect(closed.service_url, authentication=pulsar.AuthenticationToken(signed(keys, ROLE)))
        consumer = again.subscribe(topic, "all", initial_position=pulsar.InitialPosition.Earliest)
        found = [consumer.receive(DEADLINE_MS).data() for _ in range(2)]
        assert found == [b"by the first key", b"still by the first key"]
        again.close()
        client.close()
    finally:
        await operator.close()


def test_a_token_without_a_grant_may_do_nothing(closed: BrokerProcess, keys: Keys) -> None:
    client = connect(
        closed.service_url,
        authentication=pulsar.AuthenticationToken(signed(keys, "shop/nobody")),
    )
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(f"persistent://public/default/{fresh_name()}")
    client.close()
