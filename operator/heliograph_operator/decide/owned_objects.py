"""The objects that the operator creates or that follow from them: their kinds, labels and resources."""

from __future__ import annotations

from typing import Final

from heliograph_operator.objects.kinds import BACKUP, BROKER_CLUSTER, GROUP, KINDS, Body, Key, Kind

from .archive_cron_job import CRON_JOB, JOB
from .backup_jobs import OF as OF_BACKUP
from .cluster_objects import OWNED, POD, VOLUME_CLAIM

_MANAGED: Final = "app.kubernetes.io/managed-by=heliograph-operator"
#: The claims of a StatefulSet have the labels of its immutable template.
_OF_BROKERS: Final = "app.kubernetes.io/component=broker,app.kubernetes.io/name=heliograph"


def watched(*, archives: bool) -> dict[Kind, str]:
    """Return the kinds to watch, with the selector of the operator's own objects."""
    kinds = (*OWNED.values(), POD, JOB, *((CRON_JOB,) if archives else ()))
    return {**dict.fromkeys(kinds, _MANAGED), VOLUME_CLAIM: _OF_BROKERS}


def resources_of(body: Body) -> set[Key]:
    """Return the resources that an object was created for, by its owners and by its labels.

    Both count: somebody else may have changed one of them. Those of an archive have the name of its CronJob as a label.
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
    if backup := labels.get(OF_BACKUP):
        found.add(Key(BACKUP.name, namespace, backup))
    return found
