"""Failures between two writes, and other writers meanwhile: each token that clients have is one that brokers trust."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from heliograph_api.resources.model import BrokerCluster
from heliograph_api.tokens.parts import take_apart
from heliograph_operator.act.broker_trust import BrokerTrust
from heliograph_operator.act.object_apply import ObjectRefused
from heliograph_operator.cluster.cluster_keys import ClusterKeys
from heliograph_operator.decide.token_keys import KEYS, SETTLE, KeyPlan, SigningKey
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.kube.client import KubeError
from heliograph_operator.objects.kinds import Body, Key, Kind
from heliograph_operator.objects.user_roles import UserRoles
from heliograph_operator.user.user_reconciler import UserReconciler

from .api_server import resource_of
from .cluster_keys import tokens
from .installation import OneBroker, Server
from .users import CLUSTER, SECRET, TOKEN, USER, Granting, closed, user

PUBLISHED = Key("Secret", "team", "main-token-keys")
DAY = timedelta(days=1)
T = TypeVar("T")


class Failing(Server):
    """An API server that does not answer some requests about Secrets, also some that took effect.

    Before others, it lets ``meanwhile`` happen.
    """

    def __init__(self, dice: random.Random, *bodies: Body) -> None:
        super().__init__(*bodies)
        self.dice = dice
        self.failures = 0.0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.name != "Secret":
            return await super().find(kind, namespace, name)
        return await self._disturbed(lambda: super(Failing, self).find(kind, namespace, name))

    async def create(self, kind: Kind, body: Body) -> dict[str, Any]:
        if kind.name != "Secret":
            return await super().create(kind, body)
        return await self._disturbed(lambda: super(Failing, self).create(kind, body))

    async def replace(self, kind: Kind, body: Body, subresource: str = "") -> dict[str, Any]:
        return await self._disturbed(lambda: super(Failing, self).replace(kind, body, subresource))

    async def _disturbed(self, request: Callable[[], Awaitable[T]]) -> T:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None and self.dice.random() < 0.3:
            await meanwhile()
            meanwhile = None
        fails = self.dice.random() < self.failures
        if fails and self.dice.random() < 0.5:
            raise KubeError("the API server does not answer")
        answer = await request()
        self.meanwhile = self.meanwhile or meanwhile
        if fails:
            raise KubeError("the API server does not answer")
        return answer


class World:
    """Operators that take over from each other in the middle of a reconcile, brokers, and the tokens that are out."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        cluster = closed(authentication={"enabled": True, "maxTokenValidity": "30d", "keyRotation": {"every": "20d"}})
        self.server = Failing(self.dice, cluster, user(**TOKEN))
        self.broker = Granting()
        self.mounted: set[str] = set()
        #: The keys and the ends of tokens that clients may have copied.
        self.out: set[tuple[str, datetime]] = set()
        self.operator = Operator(self)

    @property
    def published(self) -> set[str]:
        found = self.server.objects.get(PUBLISHED)
        return {each["id"] for each in json.loads(decoded(found)[KEYS])} if found else set()

    async def step(self) -> None:
        leads, following = self.operator, Operator(self)
        takes_over = self.dice.random() < 0.5
        self.server.meanwhile = following.reconcile if takes_over else None
        if self.dice.random() < 0.3:
            # So that there is a token of the key that signs now.
            self.server.objects.pop(SECRET, None)
        await leads.reconcile()
        if takes_over:
            self.operator = following
        self.server.meanwhile = None
        self.check()
        self.now += self.dice.choice([timedelta(seconds=5), timedelta(minutes=1), SETTLE, DAY, 5 * DAY])
        # A kubelet may take longer than it should.
        if self.dice.random() < 0.3:
            self.mounted = self.published

    def check(self) -> None:
        if SECRET in self.server.objects:
            parts = take_apart(decoded(self.server.objects[SECRET])["token"].encode())
            self.out.add((parts.header["kid"], datetime.fromtimestamp(parts.claims()["exp"], UTC)))
        valid = {key for key, end in self.out if end > self.now}
        assert valid <= self.published
        assert valid <= self.mounted


class Operator:
    """One operator, with what it remembers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.tokens = tokens(lambda: world.now)
        self._keys = Asking(world, self.tokens, lambda: world.now)

    async def reconcile(self) -> None:
        server = self._world.server
        context, roles = server.context(), UserRoles()
        for key in (CLUSTER, USER):
            self.tokens.seen(None, server.objects[key])
            roles.seen(None, server.objects[key])
        users = UserReconciler(
            OneBroker(self._world.broker), self.tokens, roles, BrokerTrust(), lambda: self._world.now
        )
        resource = resource_of(context, CLUSTER)
        assert isinstance(resource.model, BrokerCluster)
        # It is tried again later; the User is reconciled by what is known.
        with suppress(KubeError, ObjectRefused):
            await self._keys.reconcile(context, resource, resource.model, "http://main")
        with suppress(KubeError):
            await users.reconcile(context, resource_of(context, USER))


class Asking(ClusterKeys):
    """Asks the brokers of a world whether they trust a key."""

    def __init__(self, world: World, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._world = world

    async def _accepts(self, cluster: BrokerCluster, plan: KeyPlan, key: SigningKey, url: str) -> bool:
        return key.id in self._world.mounted


@pytest.mark.parametrize("seed", range(3))
async def test_no_token_is_out_that_brokers_do_not_trust(seed: int) -> None:
    world = World(seed)
    # Brokers start with the first keys.
    while not world.published:
        await world.operator.reconcile()
    world.mounted = world.published
    world.server.failures = 0.2
    for _ in range(100):
        await world.step()
    assert len({key for key, _ in world.out}) > 2, "keys were rotated meanwhile"
    world.server.failures = 0.0
    for _ in range(3):
        world.now += SETTLE
        world.mounted = world.published
        await world.operator.reconcile()
    world.check()
    assert world.operator.tokens.signer(CLUSTER) is not None
