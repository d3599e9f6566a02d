"""The operator's memory of a resource between two reconciles. It may all be lost: the next one rebuilds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heliograph_api.resources.model import OperatorResource
from heliograph_api.resources.role_state import RoleSettings

from heliograph_operator.decide.job_runs import Run
from heliograph_operator.decide.resource_stats import ResourceStats
from heliograph_operator.decide.user_activity import Activity
from heliograph_operator.decide.user_grants import Change
from heliograph_operator.objects.conditions import Verdict
from heliograph_operator.objects.kinds import Body, Key


@dataclass(slots=True)
class ResourceMemory:
    """Cached state of one resource (one uid)."""

    uid: str
    #: The generation that ``model`` was parsed from.
    generation: int = -1
    model: OperatorResource | None = None
    #: Why the resource is invalid.
    problem: str = ""
    #: The statistics last written to the status, and when (s, of the loop's clock).
    written: ResourceStats | None = None
    written_at: float = 0.0
    #: The activity of a User's role that was last written to the status, and when (s, of the loop's clock).
    activity: Activity | None = None
    activity_at: float = 0.0
    #: When it was reconciled first (s, of the loop's clock); 0: not yet.
    began_at: float = 0.0
    #: Refusals in a row.
    refused: int = 0
    #: Whether it waits for a broker that did not answer.
    unreachable: bool = False
    #: Whether the broker has confirmed the deletion of its object.
    deleted: bool = False
    #: Its broker's address (see :func:`.targets.broker_address`) and its full name there, once they are known.
    http_url: str = ""
    name: str = ""
    #: Whether its archive has a CronJob, as a watch told.
    has_cron_job: bool = False
    #: Why its archive has no CronJob, by the last reconcile; None: it may have one, or there is no archive.
    archive_refused: Verdict | None = None
    #: The last run of its archive that ended, with the result its pod reported.
    archive_run: Run | None = None
    #: Whether the last reconcile was refused, so that some of its objects may never have been made.
    unapplied: bool = False
    #: Whether its StatefulSet was deleted to be created again, so that nobody else did it.
    recreates_stateful_set: bool = False
    #: That StatefulSet, as it was.
    recreated_from: Body | None = None
    #: The digest of its StatefulSet that the API server last found valid.
    validated: str = ""
    #: Whether a rollout of it was begun and has not been seen to end.
    rolling_out: bool = False
    #: Whether there may be a pod of its preflight.
    preflight: bool = True
    #: Whether the Job of a Backup that has ended was deleted, or is deleted by Kubernetes in a while.
    job_settled: bool = False
    #: The changes of grants and the settings of the role that were sent last for a User, until a listing has them.
    sent: tuple[Sequence[Change], RoleSettings | None] | None = None
    #: The broker's state of it after the last reconcile that succeeded; None: a change there needs no reconcile.
    observed: object = None


@dataclass(slots=True)
class ResourceMemories:
    """The memories by key. A recreated resource starts empty."""

    _known: dict[Key, ResourceMemory] = field(default_factory=dict)

    def of(self, key: Key, body: Body) -> ResourceMemory:
        """Return the memory of a resource, a new one if its uid is new."""
        uid = str(body["metadata"].get("uid", ""))
        memory = self._known.get(key)
        if memory is None or memory.uid != uid:
            memory = self._known[key] = ResourceMemory(uid)
        return memory

    def forget(self, key: Key) -> None:
        """Drop the memory of a resource that is gone."""
        self._known.pop(key, None)

    def all(self) -> list[tuple[Key, ResourceMemory]]:
        """Return every key with its memory."""
        return list(self._known.items())
