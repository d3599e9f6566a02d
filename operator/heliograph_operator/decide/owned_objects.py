"""The objects that the operator creates or that follow from them: their kinds, labels and resources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from heliograph_operator.objects.kinds import BROKER_CLUSTER, GROUP, KINDS, Body, Key, Kind

from .archive_cron_job import CRON_JOB, JOB, OF, cron_job_name
from .cluster_objects import OWNED, POD, VOLUME_CLAIM

_MANAGED: Final = "app.kubernetes.io/managed-by=heliograph-operator"
#: The claims of a StatefulSet have the labels of its immutable template.
_OF_BROKERS: Final = "app.kubernetes.io/component=broker,app.kubernetes.io/name=heliograph"


def watched(*, archives: bool) -> dict[Kind, str]:
    """Return the kinds to watch, with the selector of the operator's own objects."""
    kinds = (*OWNED.values(), POD, *((CRON_JOB, JOB) if archives else ()))
    return {**dict.fromkeys(kinds, _MANAGED), VOLUME_CLAIM: _OF_BROKERS}


def resources_of(body: Body) -> set[Key]:
    """Return the resources that an object was created for, by its owners and by its labels.

    Both count: somebody else may have changed one of them. An archive's is the key of its CronJob's name.
    """
    metadata = body["metadata"]
    namespace, labels = metadata.get("namespace", ""), metadata.get("labels") or {}
    found = {
        Key(owner["kind"], namespace, owner["name"])
        for owner in metadata.get("ownerReferences") or ()
        if owner["apiVersion"].partition("/")[0] == GROUP and owner["kind"] in KINDS
    }
    if labels.get("app.kubernetes.io/component") == "broker" and (name := labels.get("app.kubernetes.io/instance")):
        found.add(Key(BROKER_CLUSTER.name, namespace, name))
    return found


def topic_of(body: Body, topics: Iterable[str]) -> str | None:
    """Return the name of the Topic, one of ``topics``, whose archive a CronJob, job or pod is of; else None."""
    name = (body["metadata"].get("labels") or {}).get(OF)
    return next((topic for topic in topics if cron_job_name(topic) == name), None) if name else None
