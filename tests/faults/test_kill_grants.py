"""Kill -9 while grants are given and revoked: a confirmed one is never lost, and a revoked one never comes back."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Final

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.tokens import Signer, ask
from tests.support.wire_client import Type, WireClient

ADMIN: Final = "admin"
NAMESPACE: Final = "/admin/v2/namespaces/public/default"
TOPIC: Final = "/admin/v2/persistent/public/default/orders"
PREFIX: Final = "/admin/v2/persistent/public/default/orders-*"
#: Where each worker grants, which no other one does.
PLACES: Final = (NAMESPACE, TOPIC, PREFIX)
ROLES: Final = 4
#: Several changes of each role fall into the time before a kill.
UNTIL_KILL_S: Final = 0.6


class Grants:
    """The grants at one place, of roles that have either none or ``consume``; a worker changes them one by one."""

    def __init__(self, place: str, admin: str, rng: random.Random) -> None:
        self.place = place
        self._admin = admin
        self._rng = rng
        #: By role, what may hold: what was confirmed last, and beside it what was asked for and not answered.
        self.possible: dict[str, set[bool]] = {f"role-{PLACES.index(place)}-{each}": {False} for each in range(ROLES)}
        self.confirmed = 0

    def change(self, http_url: str) -> None:
        """Grant and revoke until the broker is gone."""
        while True:
            role = self._rng.choice(list(self.possible))
            wanted = not next(iter(self.possible[role]))
            self.possible[role].add(wanted)
            method, body = ("POST", ["consume"]) if wanted else ("DELETE", None)
            try:
                answer = ask(f"{http_url}{self.place}/permissions/{role}", self._admin, method, body)
            except (OSError, HTTPException):
                return
            assert answer.status == 204, answer
            self.possible[role] = {wanted}
            self.confirmed += 1

    def check(self, http_url: str) -> None:
        """Compare with what the broker has, which holds from now on."""
        shown = ask(f"{http_url}{NAMESPACE}/permissions", self._admin).body
        if self.place != NAMESPACE:
            shown = ask(f"{http_url}{self.place}/permissions", self._admin).body
        topic = "orders-eu" if self.place == PREFIX else "orders"
        for role, possible in self.possible.items():
            question = f"/heliograph/v1/auth/can-i?action=consume&topic=persistent://public/default/{topic}&role={role}"
            may = ask(http_url + question, self._admin).body["allowed"]
            assert may in possible, f"{role} at {self.place}: {may}, and confirmed was {possible}"
            assert (shown.get(role) == ["consume"]) == may
            self.possible[role] = {may}


def test_grants_and_their_ends_survive_kills_once_they_are_confirmed(tmp_path: Path, rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    signer = Signer(tmp_path / "key")
    admin = signer.token(ADMIN)
    with BrokerProcess(tmp_path / "data", environment=signer.settings(superusers=ADMIN)) as broker:
        assert ask(broker.http_url + TOPIC, admin, "PUT").status == 204
        places = [Grants(place, admin, random.Random(rng.random())) for place in PLACES]
        for _ in range(max(3, rounds // 5)):
            workers = [threading.Thread(target=each.change, args=(broker.http_url,)) for each in places]
            for worker in workers:
                worker.start()
            time.sleep(rng.random() * UNTIL_KILL_S)
            broker.kill9()
            for worker in workers:
                worker.join()
            broker.start()
            for each in places:
                each.check(broker.http_url)
        assert sum(each.confirmed for each in places) > 0
        check_by_commands(broker, signer, places[1])


def check_by_commands(broker: BrokerProcess, signer: Signer, grants: Grants) -> None:
    """Subscribe as each role: the port of messages decides as the questions were answered."""
    for role, possible in grants.possible.items():
        with WireClient(broker.service_url, connect=False) as client:
            client.authenticate(signer.token(role))
            client.send(Type.SUBSCRIBE, topic="orders", subscription=role, subType=0, consumer_id=1, request_id=1)
            answer = client.read_frame()
            if possible == {True}:
                assert answer.command.type == Type.SUCCESS
            else:
                assert answer.body.error == wire.AuthorizationError
