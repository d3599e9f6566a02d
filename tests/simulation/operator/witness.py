"""Sees everything that an operator does to the API server and to brokers, and says when it must not be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from heliograph_api.resources.model import KINDS
from heliograph_operator.act.broker_sessions import FRESH_S
from heliograph_operator.objects.kinds import Key

from .api_server import ApiServer, Connection
from .broker import Deletion, ModelBroker, Path
from .claims import (
    Object,
    Place,
    held_place,
    is_allowed,
    is_held,
    is_leaving,
    is_managed,
    is_within,
    keeps_data,
    key_of,
    place_by_spec,
    place_of,
)
from .virtual_time import machine

#: Time (s) in which an operator may miss what a client creates: its listing is that old.
_UNSEEN_S = 5.0
POLICY_KINDS = ("Tenant", "Namespace", "Topic", "Subscription")
_WITH_MESSAGES = ("Topic", "Subscription")
#: Time (s) that a change in a broker may take which was decided before a consent was taken back, or before the resource
#: that is being deleted was changed.
_UNDER_WAY_S = 2.0


class Violation(Exception):
    """A promise that was broken: its kind, and what happened."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Witness:
    """Keeps the first violation, because what follows from it says little."""

    def __init__(
        self, server: ApiServer, brokers: dict[str, ModelBroker], operators: Callable[[], list[Connection]]
    ) -> None:
        self.violation: Violation | None = None
        self._server = server
        self._brokers = brokers
        self._operators = operators
        #: The objects of unmanaged resources before they were released, by uid.
        self._released: dict[str, Place] = {}
        #: When each resource was held (s), by uid.
        self._held_since: dict[str, float] = {}
        #: The clusters of resources that were paused or not managed when their status was written, by uid.
        self._clusters: dict[str, str] = {}
        #: Topics and subscriptions that a resource left behind on purpose, and the uids of the parents that knew of it.
        self._kept: dict[Place, set[str]] = {}
        #: When the spec or the annotations of each resource were last changed (s), by uid.
        self._changed_at: dict[str, float] = {}
        #: The uids of the resources with which each object was last deleted, and the operator that got the answer.
        self._deleted_with: dict[Place, set[str]] = {}
        self._deleted_by: dict[Place, Connection] = {}

    def fail(self, kind: str, text: str) -> None:
        if self.violation is None:
            at = asyncio.get_running_loop().time()
            self.violation = Violation(kind, f"{text} (at {at:.3f} s)")

    # -- the API server ---------------------------------------------------------------------------------------------

    def changed(self, before: Object | None, now: Object | None) -> None:
        body = now if now is not None else before
        assert body is not None
        if body["kind"] == "Event":
            self._event(body)
        elif body["kind"] in POLICY_KINDS:
            if now is None:
                self._gone(body)
            else:
                if before is None or any(
                    before["metadata"].get(name) != now["metadata"].get(name) for name in ("generation", "annotations")
                ):
                    self._changed_at[now["metadata"]["uid"]] = asyncio.get_running_loop().time()
                self._held(before, now)
                self._status(before, now)

    def _held(self, before: Object | None, now: Object) -> None:
        place = held_place(now)
        was = held_place(before) if before is not None else None
        if place is not None and place != was:
            self._held_since[now["metadata"]["uid"]] = asyncio.get_running_loop().time()
        if place is None:
            if was is not None and not is_managed(now):
                self._released[now["metadata"]["uid"]] = was
            return
        if place == was or not is_managed(now):
            return
        self._kept.pop(place, None)
        for body in self._policies():
            # One that is not managed or allowed any more owns nothing, and is released just now.
            owns = is_managed(body) and is_allowed(self._server.objects, body, place)
            if body["metadata"]["uid"] != now["metadata"]["uid"] and held_place(body) == place and owns:
                self.fail("two owners", f"{key_of(now)} is made owner of {place.name}, which {key_of(body)} owns")

    def _gone(self, body: Object) -> None:
        if body["kind"] not in _WITH_MESSAGES or not keeps_data(body):
            return
        place = held_place(body) or self._released.get(body["metadata"]["uid"])
        if place is None or any(place_of(self._server.objects, other) == place for other in self._policies()):
            return
        above = [
            each["metadata"]["uid"]
            for each in self._policies()
            if (of := place_of(self._server.objects, each)) is not None and is_within(place, of)
        ]
        self._kept[place] = set(above)

    def _status(self, before: Object | None, now: Object) -> None:
        status = now.get("status") or {}
        if before is not None and status == before.get("status"):
            return
        ready = ready_of(status)
        if ready.get("reason") in ("Paused", "Unmanaged") and (stands_for := place_of(self._server.objects, now)):
            self._clusters.setdefault(now["metadata"]["uid"], stands_for.cluster)
        if ready.get("status") != "True":
            return
        place = held_place(now)
        generation = int(status["observedGeneration"])
        if place is None:
            self.fail("a false status", f"{key_of(now)} is Ready and owns nothing")
            return
        known = self._server.specs.get((now["metadata"]["uid"], generation))
        if known is None:
            self.fail("a false status", f"{key_of(now)} is Ready for generation {generation}, which it never had")
            return
        since, spec = known
        wanted = wanted_of(now, spec)
        there = self._brokers[place.cluster].states_since(place.kind, place.name, since)
        if wanted not in there and not self._drifted(place, wanted, since - FRESH_S):
            self.fail(
                "a false status",
                f"{key_of(now)} is Ready for generation {generation}: {place.name} should be {wanted}, was {there}",
            )

    def _drifted(self, place: Place, wanted: Any, since: float) -> bool:
        """Whether somebody else took away what there was: a listing that the operator may still use had it."""
        broker = self._brokers[place.cluster]
        changes = broker.log.get((place.kind, place.name), [])
        by_others = any(change.at >= since and not change.by for change in changes)
        return by_others and wanted in broker.states_since(place.kind, place.name, since)

    def _event(self, event: Object) -> None:
        if event["reason"] != "DriftRepaired" or event["involvedObject"]["kind"] not in POLICY_KINDS:
            return
        about = event["involvedObject"]
        body = self._server.objects.get(Key(about["kind"], about["namespace"], about["name"]))
        place = held_place(body) if body is not None else None
        if place is None or event["message"].startswith("subscriptionPolicies["):
            # Another resource left these to the Topic.
            return
        changes = self._brokers[place.cluster].log.get((place.kind, place.name), [])
        resource = str(key_of(body or {}))
        if len(changes) >= 2 and changes[-1].by == changes[-2].by == resource:
            self.fail("a false event", f"{resource}: {event['message']!r} was a change of its own")

    # -- brokers ----------------------------------------------------------------------------------------------------

    def applied(self, broker: ModelBroker, kind: str, name: str, resource: str, operator: Any) -> None:
        place = Place(broker.cluster, kind, name)
        self._deleted_by.pop(place, None)
        of_kind, _, path = resource.partition(" ")
        namespace, own = path.split("/")
        body = self._server.objects.get(Key(of_kind, namespace, own))
        if of_kind == "Topic" and kind == "Subscription":
            self._applied_by_topic(place, resource, operator)
        elif body is None or held_place(body) != place:
            self.fail("policies of another", f"{resource} was applied to {name}, which it does not own")
        elif not self._consented(body, place, operator):
            self.fail("without consent", f"{resource} was applied to {name}, which no consent opens to it")

    def _applied_by_topic(self, place: Place, resource: str, operator: Connection) -> None:
        """Note that a Topic changed the policies of a subscription, which must not be another resource's."""
        for other in self._policies():
            has_it = held_place(other) == place and is_allowed(self._server.objects, other, place)
            if has_it and operator.knows(other) and self._held_for_s(other) >= _UNDER_WAY_S:
                self.fail("policies of another", f"{resource} changed {place.name}, which {key_of(other)} owns")

    def _held_for_s(self, body: Object) -> float:
        return asyncio.get_running_loop().time() - self._held_since.get(body["metadata"]["uid"], 0.0)

    def protected(self, broker: ModelBroker, path: Path, operator: Any) -> dict[str, str]:
        assert isinstance(operator, Connection)
        found = {}
        # What one leader was given binds those that led before it.
        operators = [operator, *self._operators()]
        for body in self._policies():
            recorded = self._clusters.get(body["metadata"]["uid"], "")
            place = held_place(body) or place_by_spec(self._server.objects, body, recorded)
            if place is None or place.kind not in _WITH_MESSAGES or place.cluster != broker.cluster:
                continue
            cluster = self._cluster_of(body, place)
            known = any(each.knows(body) and (cluster is None or each.knows(cluster)) for each in operators)
            # The operator has to ask for the resource itself before it deletes its object.
            known = known or (is_held(body) and place[1:] == path and self._unchanged_for_s(body) >= _UNDER_WAY_S)
            if not known or (cluster is not None and not is_allowed(self._server.objects, body, place)):
                continue
            if not is_leaving(body):
                found[place.name] = f"{key_of(body)} exists"
            elif is_held(body) and keeps_data(body):
                found[place.name] = f"{key_of(body)} retains it"
        return found

    def _unchanged_for_s(self, body: Object) -> float:
        """Return for how long a resource has been as it is, while the running process was not frozen."""
        where = machine()
        since = max(self._changed_at[body["metadata"]["uid"]], 0.0 if where is None else where.thawed_at)
        return asyncio.get_running_loop().time() - since

    def confirmed(self, broker: ModelBroker, path: Path, operator: Any) -> None:
        self._deleted_by[Place(broker.cluster, *path)] = operator

    def deleted(self, broker: ModelBroker, deletion: Deletion, protected: dict[str, str], operator: Any) -> None:
        place = Place(broker.cluster, deletion.kind, deletion.name)
        held = [body for body in self._policies() if held_place(body) == place]
        if held and not any(self._consented(body, place, operator) for body in held):
            self.fail("without consent", f"{key_of(held[0])} deleted {place.name}, which no consent opens to it")
        if deletion.name in deletion.lost and self._is_of_clients(broker, place):
            self.fail("messages are lost", f"{deletion.name} was created by a client, and no deletionPolicy was stated")
        with_these = {body["metadata"]["uid"] for body in held}
        again = self._deleted_by.pop(place, None) is operator and with_these <= self._deleted_with[place]
        if deletion.name in deletion.lost and again:
            self.fail("messages are lost", f"{deletion.name} was deleted again, after a client had created it")
        self._deleted_with[place] = with_these
        uids = {body["metadata"]["uid"] for body in self._policies()}
        for name, messages in deletion.lost.items():
            kept = self._kept.get(Place(broker.cluster, _kind_of(name), name), set())
            why = protected.get(name) or ("it was retained" if deletion.name != name and kept & uids else "")
            if why:
                what = f"{messages} messages of {name} went with {deletion.kind} {deletion.name}"
                self.fail("messages are lost", f"{what}, although {why}")

    def _consented(self, body: Object, place: Place, operator: Connection) -> bool:
        cluster = self._cluster_of(body, place)
        if cluster is None or is_allowed(self._server.objects, body, place):
            return True
        return operator.knows_for_s(cluster) < _UNDER_WAY_S

    def _cluster_of(self, body: Object, place: Place) -> Object | None:
        """Return the BrokerCluster of an object if it has to consent to the resource."""
        found = (each for key, each in self._server.objects.items() if key[::2] == ("BrokerCluster", place.cluster))
        cluster = next(found, None)
        elsewhere = cluster is not None and cluster["metadata"]["namespace"] != body["metadata"]["namespace"]
        return cluster if elsewhere else None

    def _is_of_clients(self, broker: ModelBroker, place: Place) -> bool:
        """Whether a client created something well before a resource changed it, and no resource said to delete it."""
        changes = broker.log[place.kind, place.name][:-1]
        began = max((number + 1 for number, change in enumerate(changes) if change.now is None), default=0)
        life = changes[began:]
        taken_at = next((change.at for change in life if change.by), float("inf"))
        if not life or life[0].by or taken_at - life[0].at < _UNSEEN_S:
            return False
        owners = [body["metadata"]["uid"] for body in self._policies() if held_place(body) == place]
        stated = [spec.get("deletionPolicy") for (uid, _), (_, spec) in self._server.specs.items() if uid in owners]
        return not any(stated)

    def _policies(self) -> list[Object]:
        return [body for key, body in self._server.objects.items() if key.kind in POLICY_KINDS]


def wanted_of(body: Object, spec: Object) -> Any:
    """Return what :meth:`.broker.ModelBroker.present` returns for an object that has this spec."""
    document = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": {"name": "x"}, "spec": spec}
    model: Any = KINDS[body["kind"]].model_validate(document)
    if body["kind"] == "Topic":
        return model.spec.partitions, model.spec.policies().message_ttl_ms
    if body["kind"] in ("Namespace", "Subscription"):
        return (model.spec.policies().message_ttl_ms,)
    return tuple(model.spec.admin_roles)


def _kind_of(name: str) -> str:
    return "Subscription" if "/subscription/" in name else "Topic"


def ready_of(status: Object) -> Object:
    return next((each for each in status.get("conditions") or () if each["type"] == "Ready"), {})
