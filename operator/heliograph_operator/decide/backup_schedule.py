"""The Backups of a ScheduledBackup: the one that is due, and those that are not kept any longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from heliograph_api.resources.backup_spec import ScheduledBackupSpec

from heliograph_operator.objects.conditions import READY, Reason, Verdict, condition, ready, timestamp
from heliograph_operator.objects.kinds import API_VERSION, BACKUP, GROUP, SCHEDULED_BACKUP, Body, is_deleted

from .backup_state import FAILED, SUCCEEDED, is_over, phase_of
from .cron_times import last_time, next_time
from .stateful_set import Manifest

#: Label with the name of the ScheduledBackup, on its Backups.
SCHEDULE: Final = f"{GROUP}/schedule"
#: Failed Backups of which nothing is stored that are kept while none has succeeded after them.
_MOST_FAILED: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """The next steps for a schedule: the time of the Backup to create, and the Backups to delete."""

    #: None: nothing is due.
    due: datetime | None
    next_time: datetime
    expired: tuple[Body, ...]
    #: Why what is due has to wait; empty if it does not.
    waits: str = ""


def plan(spec: ScheduledBackupSpec, body: Body, backups: Sequence[Body], now: datetime) -> Plan:
    """Return the plan for a ScheduledBackup with its Backups. Raises :class:`.cron_times.ScheduleError`.

    Only the last one of several times that have passed since the last Backup is due.
    """
    expired = tuple(_expired(spec, backups, now))
    following = next_time(spec.schedule, spec.time_zone, now)
    last = last_time(spec.schedule, spec.time_zone, now)
    if spec.suspend or last <= _last_schedule_time(body, backups, now):
        return Plan(None, following, expired)
    running = next((each for each in backups if not is_over(each) and not is_deleted(each)), None)
    if running is not None:
        return Plan(None, following, expired, f"the one of {timestamp(last)} waits for Backup {_name(running)} to end")
    return Plan(last, following, expired)


def _last_schedule_time(body: Body, backups: Sequence[Body], now: datetime) -> datetime:
    """Return the time of the schedule for which a Backup was created last; the creation of the schedule for none.

    A clock that was ahead may have recorded a time that is still to come. The Backups say more then.
    """
    created = str(body["metadata"]["creationTimestamp"])
    recorded = datetime.fromisoformat((body.get("status") or {}).get("lastScheduleTime") or created)
    if recorded <= now:
        return recorded
    return max((each for each in map(_created, [body, *backups]) if each <= now), default=now)


def _created(body: Body) -> datetime:
    return datetime.fromisoformat(str(body["metadata"]["creationTimestamp"]))


def _expired(spec: ScheduledBackupSpec, backups: Sequence[Body], now: datetime) -> list[Body]:
    over = sorted((each for each in backups if is_over(each)), key=_ended, reverse=True)
    # One that is being deleted may be gone soon: it does not stand in for another.
    good = [each for each in over if phase_of(each) == SUCCEEDED and not is_deleted(each)]
    bad = [each for each in over if phase_of(each) == FAILED]
    found: list[Body] = []
    if spec.keep is not None:
        # A Backup in another store, or of another BrokerCluster, does not stand in for one of this.
        by_place: dict[tuple[str, ...], list[Body]] = {}
        for each in good:
            by_place.setdefault(_place(each), []).append(each)
        found = [each for there in by_place.values() for each in there[spec.keep :]]
    if spec.keep_for is not None and spec.keep_for >= 0:
        # However old it is, the last one that can be restored stays.
        found += [each for each in good[1:] if each not in found and _age_ms(each, now) > spec.keep_for]
    # A clock that was ahead may have ended an older one later.
    newest = max(good, key=lambda each: (_created(each), _name(each)), default=None)
    found = [each for each in found if each is not newest]
    if good:
        found += [each for each in bad if _ended(each) < _ended(good[0])]
    else:
        # One that is stored can be restored, though its verification failed.
        found += [each for each in bad if not each["status"].get("name")][_MOST_FAILED:]
    return [each for each in found if not is_deleted(each)]


def _place(backup: Body) -> tuple[str, ...]:
    """Return the BrokerCluster of a Backup, and where it is stored."""
    spec = backup["spec"]
    cluster, destination = str(spec["clusterRef"]["name"]), spec["destination"]
    if (s3 := destination.get("s3")) is not None:
        return cluster, "s3", str(s3.get("endpoint") or "").rstrip("/"), str(s3["bucket"]), str(s3["prefix"])
    volume = destination["volume"]
    return cluster, "volume", str(volume["claimRef"]["name"]), str(volume["directory"])


def _ended(backup: Body) -> tuple[str, str]:
    return str((backup.get("status") or {}).get("completionTime") or ""), _name(backup)


def _age_ms(backup: Body, now: datetime) -> float:
    # The time before a long age has no year: ages are compared.
    ended = _ended(backup)[0]
    return (now - datetime.fromisoformat(ended)) / timedelta(milliseconds=1) if ended else 0.0


def _name(backup: Body) -> str:
    return str(backup["metadata"]["name"])


def backup_of(body: Body, due: datetime) -> Manifest:
    """Return the Backup of a ScheduledBackup for a time of its schedule."""
    own = body["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": SCHEDULED_BACKUP.name, "name": own["name"], "uid": own["uid"]}
    return {
        "apiVersion": API_VERSION,
        "kind": BACKUP.name,
        "metadata": {
            "name": f"{own['name']}-{due:%Y%m%d%H%M}",
            "namespace": own["namespace"],
            "labels": {SCHEDULE: own["name"], "app.kubernetes.io/managed-by": "heliograph-operator"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": dict(body["spec"]["template"]),
    }


def schedule_fields(plan: Plan, backups: Sequence[Body], suspended: bool) -> dict[str, Any]:
    """Return the fields of the status that follow from the Backups; those of deleted ones stay."""
    good = sorted((each for each in backups if phase_of(each) == SUCCEEDED), key=_ended)
    fields: dict[str, Any] = {
        "nextTime": None if suspended else timestamp(plan.next_time),
        "backups": sum(1 for each in good if not is_deleted(each)),
    }
    if good:
        fields |= {"lastSuccess": _name(good[-1]), "lastSuccessTime": _ended(good[-1])[0]}
    return fields


def schedule_verdict(spec: ScheduledBackupSpec, plan: Plan, backups: Sequence[Body]) -> Verdict:
    """Return the Ready condition: False if the last Backup that ended has failed."""
    over = sorted((each for each in backups if is_over(each) and not is_deleted(each)), key=_ended)
    if over and phase_of(over[-1]) == FAILED:
        why = condition(over[-1].get("status") or {}, READY).get("message", "")
        return ready(Reason.BACKUP_FAILED, f"Backup {_name(over[-1])}: {why}")
    if spec.suspend:
        return ready(Reason.BACKUP_SUSPENDED, "spec.suspend: no Backup is created", "True")
    message = f"the next Backup is created at {timestamp(plan.next_time)}"
    return ready(Reason.BACKUP_SCHEDULED, f"{message}; {plan.waits}" if plan.waits else message, "True")
