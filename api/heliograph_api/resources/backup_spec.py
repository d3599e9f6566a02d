"""Backups of a BrokerCluster in a store, their schedule, and the backup that a new BrokerCluster begins with."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .archive_spec import Schedule
from .cel import DURATION, InSchema, Rule
from .fields import Contradiction, Duration, Model, Reference
from .rollout_spec import TimeZone

#: The most characters of a Backup's name: its Jobs' names have fourteen more, in a label of 63.
MAX_BACKUP_NAME: Final = 49
#: The same for a ScheduledBackup: its Backups' names have a time of thirteen characters more.
MAX_SCHEDULE_NAME: Final = MAX_BACKUP_NAME - 13
LATEST: Final = "latest"
"""The name that stands for the newest backup below a URL whose verification has not failed."""

_MAX_PATH: Final = 512
_PART: Final = "[0-9A-Za-z_-][0-9A-Za-z._-]*"
_BUCKET: Final = "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_PATH: Final = f"{_PART}(/{_PART})*"
_URL: Final = "https?://[0-9A-Za-z\\\\[][^ ?#@/]*/?"
_BACKUP: Final = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_NO_BUCKET: Final = "not the name of a bucket; valid: 3 to 63 lower-case letters, digits, - and ."
_NO_PATH: Final = (
    "not a path; valid: names of letters, digits and the characters . _ - between slashes, such as team/main"
)
_NO_URL: Final = "not the URL of a store; valid: https://HOST or http://HOST:PORT"
_NO_BACKUP: Final = f"not the name of a backup; valid: lower-case letters, digits, - and . between them, or {LATEST}"
_ONE_OF: Final = "a destination is one store; valid: s3 or volume, and not both"
_MINUTE_MS: Final = 60_000
_NO_AGE: Final = "would delete backups at once; valid: 1m or more, or -1 or infinite for no limit"


def _matching(pattern: str, problem: str) -> AfterValidator:
    """Return a check of a text by a pattern, which is written as in CEL."""
    compiled = re.compile(pattern.replace("\\\\", "\\"), re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{quoted(text)} is {problem}")
        return text

    return AfterValidator(check)


def _age(duration_ms: int) -> int:
    if 0 <= duration_ms < _MINUTE_MS:
        raise ValueError(_NO_AGE)
    return duration_ms


StorePath = Annotated[
    str,
    _matching(_PATH, _NO_PATH),
    InSchema({"maxLength": _MAX_PATH}),
    Rule(f"self.matches('^{_PATH}$')", _NO_PATH),
]
"""Names between slashes, none of them hidden."""


class S3Destination(Model):
    """A bucket of a store that speaks S3."""

    bucket: Annotated[
        str,
        _matching(_BUCKET, _NO_BUCKET),
        InSchema({"maxLength": 63}),
        Rule(f"self.matches('^{_BUCKET}$')", _NO_BUCKET),
    ]
    """Name of the bucket."""
    prefix: StorePath
    """Path in the bucket below which the backups are. Give each BrokerCluster one of its own."""
    endpoint: (
        Annotated[
            str,
            _matching(_URL, _NO_URL),
            InSchema({"maxLength": 253}),
            Rule(f"self.matches('^{_URL}$')", _NO_URL),
        ]
        | None
    ) = None
    """URL of the store; default: Amazon's, of the region."""
    region: str | None = Field(default=None, min_length=1, max_length=63)
    """Region of the bucket; default: us-east-1."""
    virtual_hosted: bool = False
    """Whether the bucket is named in the host name, and not in the path."""
    credentials_ref: Reference
    """The Secret with the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY and, if needed, AWS_SESSION_TOKEN. Its other
    entries are not used."""


class VolumeDestination(Model):
    """A directory of a volume."""

    claim_ref: Reference
    """The PersistentVolumeClaim."""
    directory: StorePath
    """Directory of the volume in which the backups are. Give each BrokerCluster one of its own."""


class BackupDestination(Model):
    """A place for backups: a bucket or a volume."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (Rule("has(self.s3) != has(self.volume)", _ONE_OF, ".s3"),)

    s3: S3Destination | None = None
    """A bucket of a store that speaks S3."""
    volume: VolumeDestination | None = None
    """A directory of an existing volume."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.s3 is None) == (self.volume is None):
            raise Contradiction([("s3", _ONE_OF)])
        return self


class BackupSpec(Model):
    """One backup of a BrokerCluster, made once."""

    cluster_ref: Reference
    """The BrokerCluster, in the same Kubernetes namespace. Cannot be changed."""
    destination: BackupDestination
    """Store of the backup. Cannot be changed."""
    verify: bool = False
    """Whether the backup is fetched again, restored into scratch space as large as a broker's volume, and compared.
    Cannot be changed."""
    active_deadline_seconds: int = Field(default=86_400, ge=60, le=2**31 - 1)
    """Seconds after which the backup is stopped and has failed. Cannot be changed."""
    deletion_policy: Literal["Retain", "Delete"] = "Retain"
    """Deletion of the resource keeps the stored backup (Retain), or deletes it (Delete)."""


class ScheduledBackupSpec(Model):
    """Backups on a schedule, and how long they are kept."""

    schedule: Schedule
    """Schedule of the backups, as in a CronJob: minute, hour, day, month and weekday, or @hourly, @daily and so on. A
    time that passed while nothing could be started is made up for once."""
    time_zone: TimeZone = "UTC"
    """Time zone of the schedule, such as Europe/Berlin."""
    suspend: bool = False
    """Whether no more backups are started."""
    keep: int | None = Field(default=None, ge=1, le=10_000)
    """Number of successful backups to keep in each destination; older ones are deleted with what is stored, even if
    they are younger than keepFor. Default: all."""
    keep_for: (
        Annotated[
            Duration,
            AfterValidator(_age),
            Rule(DURATION.where("self", f"v < 0 || v >= {_MINUTE_MS}"), _NO_AGE),
        ]
        | None
    ) = None
    """Age after which a backup is deleted with what is stored, such as 30d, even if keep would keep it; the last
    successful one is kept. Default: never."""
    template: BackupSpec
    """The spec of each Backup. A change is for those that begin afterwards."""


class RestoreSpec(Model):
    """The backup that new brokers begin with."""

    destination: BackupDestination
    """Store of the backup."""
    backup: Annotated[
        str,
        _matching(_BACKUP, _NO_BACKUP),
        InSchema({"maxLength": 253}),
        Rule(f"self.matches('^{_BACKUP}$')", _NO_BACKUP),
    ] = LATEST
    """Name of the backup in the store (`status.name` of a Backup), or `latest`: the newest one whose verification has
    not failed."""


class BootstrapSpec(Model):
    """The data of new brokers."""

    restore_from: RestoreSpec | None = None
    """The backup that is restored into the volume of a new broker before its first start. A volume with data is never
    changed: afterwards, a change has no effect."""
