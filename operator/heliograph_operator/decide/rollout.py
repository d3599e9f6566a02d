"""Changes of a BrokerCluster's pod template: whose they are, and the StatefulSet without the change."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from heliograph_api.resources.model import BrokerCluster

from heliograph_operator.objects.conditions import Verdict
from heliograph_operator.objects.kinds import BROKER_CLUSTER, GROUP, Body, is_deleted

from .cluster_status import PROGRESSING, ClusterReason, Problem
from .listeners import with_listeners_of
from .object_differences import differences
from .stateful_set import BROKER, Manifest, digest

#: The pod template last applied (JSON), which stays until a rollout may begin.
TEMPLATE: Final = f"{GROUP}/template"
#: A digest of the fields of the spec that the pod template was made from.
SPEC: Final = f"{GROUP}/spec"
#: Fields of the spec that no pod template depends on; on listeners it does by what :func:`held` readdresses.
_NOT_OF_PODS: Final = frozenset(
    {
        "admin_service_annotations",
        "admin_service_type",
        "archives",
        "broker_defaults",
        "consents",
        "deletion_policy",
        "limits",
        "listeners",
        "maintenance_windows",
        "network_policy",
        "pod_disruption_budget",
        "preflight",
        "service_annotations",
        "service_type",
        "storage",
    }
)
#: Reasons why a rollout waits that need nobody's help.
_PASSING: Final = (ClusterReason.ROLLOUT_WAITING, ClusterReason.PREFLIGHT_RUNNING)


@dataclass(frozen=True, slots=True)
class PendingRollout:
    """A change of the pod template that is not applied yet."""

    reason: StrEnum
    message: str
    #: The image of the new pod template.
    image: str
    #: When the next maintenance window opens, if it waits for that.
    next_window: datetime | None = None
    #: Whether a person made the change, and not only an upgrade of the operator.
    is_users: bool = False

    @property
    def failed(self) -> Problem | None:
        """Why the rollout does not begin, if somebody has to help."""
        return None if self.reason in _PASSING else (self.reason, self.message)

    @property
    def unapplied(self) -> Problem | None:
        """Why the brokers are not as the spec says yet: an upgrade that waits leaves them as they were."""
        return (self.reason, self.message) if self.is_users else None

    def verdict(self) -> Verdict:
        """Return the Progressing condition; it is False while nothing is under way, which may last for days."""
        is_under_way = self.reason is ClusterReason.PREFLIGHT_RUNNING
        return Verdict(PROGRESSING, "True" if is_under_way else "False", self.reason, self.message)

    def status(self) -> dict[str, Any]:
        """Return the field ``rollout`` of the status."""
        window = {"nextWindow": self.next_window.strftime("%Y-%m-%dT%H:%M:%SZ")} if self.next_window else {}
        return {"image": self.image, **window}


def with_origin(stateful_set: Manifest, cluster: BrokerCluster) -> Manifest:
    """Return the StatefulSet with annotations for its template, and for the spec that this was made from."""
    spec = cluster.spec.model_dump(mode="json", exclude=set(_NOT_OF_PODS), exclude_defaults=True)
    return _annotated(stateful_set, {TEMPLATE: _text(stateful_set["spec"]["template"]), SPEC: digest(spec)})


def rolls_out(wanted: Manifest, found: Body) -> bool:
    """Whether ``wanted`` (see :func:`with_origin`) has another template than the StatefulSet was last applied with."""
    before = _annotation(found, TEMPLATE)
    now: str = wanted["metadata"]["annotations"][TEMPLATE]
    if before is None:
        # An earlier version of the operator made it.
        return bool(differences(wanted["spec"]["template"], found["spec"].get("template")))
    return before != now


def is_users(wanted: Manifest, found: Body, *, is_observed: bool) -> bool:
    """Whether a rollout is due to a change of the resource, and not only to another operator or default image.

    ``is_observed`` says whether this generation of the resource was reconciled before.
    """
    before = _annotation(found, SPEC)
    now: str = wanted["metadata"]["annotations"][SPEC]
    return not is_observed if before is None else before != now


def held(wanted: Manifest, found: Body, *, readdress: bool) -> Manifest | None:
    """Return the StatefulSet with the template it has; None if that is not known, so that it is left as it is.

    With ``readdress``, its brokers have the listeners of ``wanted``: an address that changed does not wait as upgrades
    do, nor take one with it.
    """
    text, spec = _annotation(found, TEMPLATE), _annotation(found, SPEC)
    if text is None or spec is None:
        return None
    template: Manifest = json.loads(text)
    if readdress:
        template = with_listeners_of(template, wanted["spec"]["template"])
    kept = {**wanted, "spec": {**wanted["spec"], "template": template}}
    return _annotated(kept, {TEMPLATE: _text(template), SPEC: spec})


def as_applied(found: Body) -> Body:
    """Return a StatefulSet with the pod template that it was last applied with, whatever somebody else made of it."""
    text = _annotation(found, TEMPLATE)
    return found if text is None else {**found, "spec": {**found["spec"], "template": json.loads(text)}}


def record(wanted: Manifest, template_of: Body) -> Manifest:
    """Return the ConfigMap ``wanted`` with the template that the StatefulSet ``template_of`` is applied with.

    See :func:`recorded`. One of an earlier version of the operator has none.
    """
    known = {name: text for name in (TEMPLATE, SPEC) if (text := _annotation(template_of, name)) is not None}
    return _annotated(wanted, known)


def recorded(config_map: Body | None) -> Body | None:
    """Return the StatefulSet, as far as a rollout depends on it, by the record of it; None without a record.

    A StatefulSet that somebody deleted, or that the operator deleted around its pods, is created with that template:
    a rollout that waits goes on waiting. Its pods may still run.
    """
    template = _annotation(config_map, TEMPLATE) if config_map is not None else None
    if config_map is None or template is None:
        return None
    return {
        "metadata": config_map["metadata"],
        "spec": {"template": json.loads(template)},
        "status": {"readyReplicas": 1},
    }


def image_of(stateful_set: Body) -> str:
    """Return the image of the broker in a StatefulSet's pod template."""
    containers = stateful_set["spec"]["template"]["spec"]["containers"]
    return next((str(each["image"]) for each in containers if each["name"] == BROKER), "")


def unfinished(stateful_sets: Iterable[Body], but: Body) -> str:
    """Return the first BrokerCluster (``namespace/name``) whose brokers are not all updated and ready; empty for none.

    Leave out that of the StatefulSet ``but``.
    """
    own = but["metadata"]["namespace"], but["metadata"]["name"]
    names = [
        (each["metadata"]["namespace"], each["metadata"]["name"])
        for each in stateful_sets
        if _is_of_a_cluster(each) and not is_deleted(each) and not is_finished(each)
    ]
    return next((f"{namespace}/{name}" for namespace, name in sorted(names) if (namespace, name) != own), "")


def is_serving(stateful_set: Body) -> bool:
    """Whether a broker of a StatefulSet is ready, which a rollout would interrupt."""
    return bool((stateful_set.get("status") or {}).get("readyReplicas"))


def is_finished(stateful_set: Body) -> bool:
    """Whether all brokers of a StatefulSet have its template and are ready; so are none at all."""
    wanted = int(stateful_set["spec"].get("replicas", 1))
    status = stateful_set.get("status") or {}
    return wanted == 0 or (
        status.get("observedGeneration") == stateful_set["metadata"].get("generation")
        and status.get("currentRevision") == status.get("updateRevision")
        and status.get("readyReplicas") == wanted
    )


def _is_of_a_cluster(stateful_set: Body) -> bool:
    owners = stateful_set["metadata"].get("ownerReferences") or ()
    return any(owner.get("kind") == BROKER_CLUSTER.name for owner in owners)


def _annotation(found: Body, name: str) -> str | None:
    return (found["metadata"].get("annotations") or {}).get(name)


def _annotated(wanted: Manifest, annotations: dict[str, str]) -> Manifest:
    metadata = wanted["metadata"]
    return {**wanted, "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}}}


def _text(template: Manifest) -> str:
    return json.dumps(template, sort_keys=True, separators=(",", ":"))
