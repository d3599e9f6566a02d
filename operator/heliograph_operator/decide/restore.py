"""The restore of a backup into the volume of a new broker, by a container that ends before the broker starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from heliograph_api.resources.backup_spec import LATEST, RestoreSpec
from heliograph_api.values.readable import readable_size

from heliograph_operator.objects.conditions import RESTORED, Truth, Verdict, timestamp
from heliograph_operator.objects.kinds import Body

from .backup_store import RESULT, store_access
from .cluster_status import ClusterReason
from .job_runs import failure_of, result_of
from .stateful_set import DATA_PATH, RESTORE, BeforeStart

#: The place of the backup's name among the arguments of the container.
_BACKUP: Final = 3
#: The fields of ``status.restore`` that tell one backup from another.
_IDENTITY: Final = ("url", "name", "pointInTime")


def restoring(stated: RestoreSpec | None, found: Body | None, status: Mapping[str, Any]) -> BeforeStart | None:
    """Return the container that restores a backup; None if there is nothing to restore.

    ``found`` is the StatefulSet as it was last applied. One that was created without the container stays so: its
    broker has started. Once the restore has ended, the container stays as it is, so that a change restarts no broker.
    """
    if stated is None:
        return None
    before = _before(found) if found is not None else None
    if found is not None and before is None:
        return None
    if before is not None and status.get("restore"):
        return before
    return _wanted(stated)


def _wanted(stated: RestoreSpec) -> BeforeStart:
    access = store_access(stated.destination)
    # Once: it does nothing at the later starts of the pod.
    arguments = ("backup", "pull", access.url, stated.backup, "--data-dir", DATA_PATH, "--once", "--result", RESULT)
    return BeforeStart(RESTORE, (*arguments, *access.options), access.variables, access.volumes, access.mounts)


def _before(found: Body) -> BeforeStart | None:
    """Return the container as a StatefulSet has it; None if it has none."""
    pod = found["spec"]["template"]["spec"]
    for each in pod.get("initContainers") or ():
        if each["name"] == RESTORE:
            mounts = tuple(mount for mount in each["volumeMounts"] if mount["name"] not in ("data", "tmp"))
            names = {mount["name"] for mount in mounts}
            volumes = tuple(volume for volume in pod["volumes"] if volume["name"] in names)
            return BeforeStart(RESTORE, tuple(each["args"]), tuple(each.get("env") or ()), volumes, mounts)
    return None


def may_fetch(before_start: BeforeStart | None, pods: Sequence[Body]) -> bool:
    """Whether a pod may still have to fetch a backup over the network, or there is none yet."""
    if before_start is None or before_start.mounts:
        return False
    return not (pods and all(_has_ended(pod) for pod in pods))


def _has_ended(pod: Body) -> bool:
    return ((_state(pod) or {}).get("terminated") or {}).get("exitCode") == 0


def _state(pod: Body) -> Mapping[str, Any] | None:
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if each.get("name") == RESTORE:
            state: Mapping[str, Any] = each.get("state") or {}
            return state
    return None


def restore_fields(status: Mapping[str, Any], pods: Sequence[Body]) -> dict[str, Any] | None:
    """Return the field ``restore`` of the status, once a restore has ended; what was known before stays until another.

    A volume that was lost is restored once more, perhaps from another backup.
    """
    known: Mapping[str, Any] | None = status.get("restore")
    for pod in pods:
        ended = (_state(pod) or {}).get("terminated") or {}
        result = result_of(ended) if ended.get("exitCode") == 0 else {}
        if result.get("name"):
            fields = {
                "url": str(result.get("url", "")),
                "name": str(result["name"]),
                "pointInTime": of_ms(result.get("pointInTimeMs")),
                "size": readable_size(int(result.get("bytes", 0))),
                "restoredTime": ended.get("finishedAt"),
            }
            same = known is not None and all(known.get(each) == fields[each] for each in _IDENTITY)
            return dict(known) if known and same else {name: each for name, each in fields.items() if each is not None}
    return dict(known) if known else None


def of_ms(time_ms: Any) -> str | None:
    """Format a time (ms since 1970) as the API server does; None for none."""
    return timestamp(datetime.fromtimestamp(time_ms / 1000, UTC)) if isinstance(time_ms, int) else None


def restored(
    stated: RestoreSpec | None,
    before_start: BeforeStart | None,
    fields: Mapping[str, Any] | None,
    pods: Sequence[Body],
) -> Verdict | None:
    """Return the Restored condition; None for a BrokerCluster that has nothing to do with a backup."""
    failed = next((text for pod in pods if (text := _failure(pod))), "")
    if fields is not None:
        if failed:
            return _verdict("False", ClusterReason.RESTORE_FAILED, failed)
        asked = before_start.arguments[_BACKUP] if before_start is not None else LATEST
        if asked not in (LATEST, fields["name"]):
            message = f"the volume was restored from backup {fields['name']} before; {asked} was not restored into it"
            return _verdict("False", ClusterReason.RESTORE_IGNORED, f"{message}; valid: delete its claim first")
        message = f"the broker began with backup {fields['name']} of {fields['url']}, as of {fields.get('pointInTime')}"
        if stated is None or (before_start is not None and _wanted(stated) == before_start):
            return _verdict("True", ClusterReason.RESTORED, message)
        changed = "spec.bootstrap.restoreFrom was changed afterwards, which has no effect"
        return _verdict("True", ClusterReason.RESTORED, f"{message}; {changed}")
    if stated is None:
        return None
    if before_start is None:
        message = "the broker started before spec.bootstrap.restoreFrom was set, which has no effect on its volume"
        return _verdict("False", ClusterReason.RESTORE_IGNORED, message)
    if failed:
        return _verdict("False", ClusterReason.RESTORE_FAILED, failed)
    message = f"backup {stated.backup} of {store_access(stated.destination).url} is restored before the broker starts"
    return _verdict("False", ClusterReason.RESTORE_RUNNING, message)


def _verdict(status: Truth, reason: StrEnum, message: str) -> Verdict:
    return Verdict(RESTORED, status, reason, message)


def _failure(pod: Body) -> str:
    """Return why the restore failed, or failed before it was begun again; empty if it has not."""
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        if each.get("name") == RESTORE:
            now, last = each.get("state") or {}, each.get("lastState") or {}
            ended = now.get("terminated") or last.get("terminated")
            if ended and ended.get("exitCode") != 0:
                return failure_of(ended)
    return ""
