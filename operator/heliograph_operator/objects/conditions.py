"""Conditions and their reasons, for ``kubectl wait`` and ``kubectl describe``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal, cast

from . import clock

Truth = Literal["True", "False", "Unknown"]
READY = "Ready"
POLICIES_APPLIED = "PoliciesApplied"
QUOTA_EXCEEDED = "QuotaExceeded"
ARCHIVED = "Archived"
ADOPTED = "Adopted"
RESTORED = "Restored"
CREDENTIALS_ISSUED = "CredentialsIssued"
EXPIRING = "Expiring"
TLS_READY = "TLSReady"


class Reason(StrEnum):
    """Why a condition has its status; ``docs/operator.md`` has what to do about each."""

    RECONCILED = "Reconciled"
    INVALID = "Invalid"
    PARENT_MISSING = "ParentMissing"
    PARENT_NOT_READY = "ParentNotReady"
    PARENT_DELETING = "ParentDeleting"
    NOT_ALLOWED = "NotAllowed"
    CLUSTER_NOT_READY = "ClusterNotReady"
    CLUSTER_AMBIGUOUS = "ClusterAmbiguous"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    BROKERS_CHANGED = "BrokersChanged"
    CONFLICT = "Conflict"
    SUBSCRIPTION_OWNED = "SubscriptionOwned"
    ROLE_OWNED = "RoleOwned"
    EXPIRED = "Expired"
    SCHEMA_MISSING = "SchemaMissing"
    ADOPTION_PENDING = "AdoptionPending"
    EXISTED_BEFORE = "ExistedBefore"
    RENAME_REFUSED = "RenameRefused"
    SHRINK_REFUSED = "ShrinkRefused"
    PARTITIONING_REFUSED = "PartitioningRefused"
    REFUSED = "Refused"
    NOT_APPLIED = "NotApplied"
    NOT_SUPPORTED = "NotSupported"
    UNAUTHORIZED = "Unauthorized"
    CREDENTIALS_MISSING = "CredentialsMissing"
    AUTHENTICATION_DISABLED = "AuthenticationDisabled"
    NO_CREDENTIALS = "NoCredentials"
    CREDENTIALS_PENDING = "CredentialsPending"
    CREDENTIALS_ISSUED = "CredentialsIssued"
    CREDENTIALS_VALID = "CredentialsValid"
    CREDENTIALS_EXPIRING = "CredentialsExpiring"
    CREDENTIALS_EXPIRED = "CredentialsExpired"
    PAUSED = "Paused"
    UNMANAGED = "Unmanaged"
    DELETING = "Deleting"
    CHILDREN_EXIST = "ChildrenExist"
    NO_QUOTA = "NoQuota"
    QUOTA_WITHIN_LIMITS = "QuotaWithinLimits"
    SIZE_QUOTA_EXCEEDED = "SizeQuotaExceeded"
    AGE_QUOTA_EXCEEDED = "AgeQuotaExceeded"
    ARCHIVE_PENDING = "ArchivePending"
    ARCHIVE_SUCCEEDED = "ArchiveSucceeded"
    ARCHIVE_FAILED = "ArchiveFailed"
    ARCHIVE_SUSPENDED = "ArchiveSuspended"
    ARCHIVE_NOT_ALLOWED = "ArchiveNotAllowed"
    BACKUP_WAITING = "BackupWaiting"
    BACKUP_RUNNING = "BackupRunning"
    BACKUP_SUCCEEDED = "BackupSucceeded"
    BACKUP_FAILED = "BackupFailed"
    BACKUP_DELETION_FAILED = "BackupDeletionFailed"
    BACKUP_SCHEDULED = "BackupScheduled"
    BACKUP_SUSPENDED = "BackupSuspended"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition as a reconcile finds it."""

    type: str
    status: Truth
    #: A :class:`Reason` or, on a BrokerCluster, a :class:`.cluster_status.ClusterReason`.
    reason: StrEnum
    message: str = ""


def ready(reason: StrEnum, message: str, status: Truth = "False") -> Verdict:
    """Return the Ready condition; by default, one of a resource that is not ready."""
    return Verdict(READY, status, reason, message)


def with_verdicts(
    conditions: Iterable[Mapping[str, Any]], verdicts: Iterable[Verdict], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return ``conditions`` updated by ``verdicts``, which come first, in their order.

    ``lastTransitionTime`` changes only with the status, not with the reason.
    """
    known = {str(each["type"]): dict(each) for each in conditions}
    changed: dict[str, dict[str, Any]] = {}
    for verdict in verdicts:
        before = known.pop(verdict.type, None)
        kept = before is not None and before.get("status") == verdict.status and before.get("lastTransitionTime")
        changed[verdict.type] = {
            "type": verdict.type,
            "status": verdict.status,
            "reason": str(verdict.reason),
            # The longest message the API server accepts.
            "message": verdict.message[:32768],
            "lastTransitionTime": kept or timestamp(now),
            "observedGeneration": generation,
        }
    return [*changed.values(), *known.values()]


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a status, or an empty mapping."""
    # A loop: a generator takes twice as long, and this is asked for each resource at each scrape.
    for each in status.get("conditions") or ():
        if each.get("type") == kind:
            return cast(Mapping[str, Any], each)
    return {}


def in_this_state_s(of: Mapping[str, Any]) -> float:
    """Return the seconds for which a condition has had its status; 0 if it does not say when that began."""
    since = of.get("lastTransitionTime")
    return (clock.now() - datetime.fromisoformat(str(since))).total_seconds() if since else 0.0


def read_timestamp(text: object) -> datetime:
    """Return the time that a text in ISO 8601 states, in UTC if it has no zone. Raises :class:`ValueError`."""
    found = datetime.fromisoformat(str(text))
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def timestamp(now: datetime) -> str:
    """Format a time as the API server does: UTC, to the second."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
