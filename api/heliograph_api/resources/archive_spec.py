"""The archive of a Topic: its schedule, its path, and the resources of the job."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from heliograph_api.values.quoting import quoted

from .cel import DURATION, SIZE, InSchema, Rule
from .fields import Contradiction, Duration, Model, Reference, Size

SUBSCRIPTION: Final = "heliograph-archive"
"""The durable subscription of the archive: it is acknowledged up to the last message in the files, and no further."""
MOUNT: Final = "/archive"
"""Mount point of a volume in the job's pods: paths that are no URL begin with it."""
DEFAULT_FILE_SIZE: Final = 128 * 1024**2
LOCAL: Final = "local[*]"

_MAX_SCHEDULE_LENGTH = 100
_MAX_PATH_LENGTH = 1024
_VALID_SCHEDULE = (
    "minute, hour, day, month and weekday, such as '0 * * * *' or '30 2 * * MON-FRI',"
    " or @hourly, @daily, @weekly, @monthly or @yearly"
)
_VALID_PATH = f"{MOUNT}/DIRECTORY with a volumeClaimRef, s3a://BUCKET/DIRECTORY or hdfs://HOST/DIRECTORY"
_NO_VOLUME = f"a path below {MOUNT} needs a volume; valid: set volumeClaimRef"
_NOT_BACKWARDS = "a range goes from the lower number to the higher"


def _field(number: str, names: str = "") -> str:
    """Return a pattern for one field of a schedule, as CronJobs read them."""
    one = f"({number}|{names})" if names else f"({number})"
    item = f"([*]|{one}(-{one})?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


_MONTHS = "(?i:JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)"
_DAYS = "(?i:SUN|MON|TUE|WED|THU|FRI|SAT)"
_SCHEDULE: Final = (
    "^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|"
    + " +".join(
        (
            _field("[1-5]?[0-9]"),
            _field("1?[0-9]|2[0-3]"),
            _field("[1-9]|[12][0-9]|3[01]"),
            _field("[1-9]|1[0-2]", _MONTHS),
            _field("[0-6]", _DAYS),
        )
    )
    + ")$"
)
# A path of directories, none of them a hidden one: what begins with _ or . is not read by Spark. Spark's patterns, too,
# are not for a place to write to.
_DIRECTORIES = r"(/[0-9A-Za-z=+,@:-][0-9A-Za-z=+,@:._-]*)*"
_PATH: Final = f"^({MOUNT}{_DIRECTORIES}|(s3a|hdfs)://[0-9A-Za-z][0-9A-Za-z.:_-]*{_DIRECTORIES})/?$"


def _schedule(text: str) -> str:
    if not re.fullmatch(_SCHEDULE, text):
        raise ValueError(f"{quoted(text)} is not a schedule; valid: {_VALID_SCHEDULE}")
    for first, last in re.findall(r"([0-9]+)-([0-9]+)", text):
        if int(first) > int(last):
            raise ValueError(f"{first}-{last} ends before it begins; valid: {_NOT_BACKWARDS}")
    return text


def _path(text: str) -> str:
    if not re.fullmatch(_PATH, text):
        near = " (s3a, not s3)" if text.startswith("s3://") else ""
        raise ValueError(f"{quoted(text)} is not a path for an archive{near}; valid: {_VALID_PATH}")
    return text


def _file_size(size: int) -> int:
    if size < 1024**2:
        raise ValueError(_SMALL_FILE)
    return size


_SMALL_FILE = "files so small are read slowly; valid: 1Mi or more"
_NO_AGE = "not an age of days to remove; valid: more than 0, such as 90d, or leave it out to keep all"


def _age(ms: int) -> int:
    if ms <= 0:
        raise ValueError(_NO_AGE)
    return ms


_MASTER = r"^(local(\\[([*]|[1-9][0-9]?)\\])?|k8s://https?://[^ ]+)$"
_NO_MASTER = "valid: local[*], local[NUMBER], or k8s://https://HOST:PORT, such as k8s://https://kubernetes.default.svc"


def _master(text: str) -> str:
    if not re.fullmatch(_MASTER.replace("\\\\", "\\"), text):
        raise ValueError(f"{quoted(text)} is not a Spark master; {_NO_MASTER}")
    return text


Schedule = Annotated[
    str,
    AfterValidator(_schedule),
    InSchema({"maxLength": _MAX_SCHEDULE_LENGTH}),
    Rule(f"self.matches('{_SCHEDULE}')", f"not a schedule; valid: {_VALID_SCHEDULE.replace(chr(39), '')}"),
    Rule(
        "self.findAll('[0-9]+-[0-9]+').all(r, int(r.find('^[0-9]+')) <= int(r.find('[0-9]+$')))",
        f"a range ends before it begins; valid: {_NOT_BACKWARDS}",
    ),
]
"""Times, as CronJobs read them."""
FileSize = Annotated[Size, AfterValidator(_file_size), Rule(SIZE.where("self", "v >= 1048576"), _SMALL_FILE)]
"""Bytes of a file, 1 MiB or more."""
ArchivePath = Annotated[
    str,
    AfterValidator(_path),
    InSchema({"maxLength": _MAX_PATH_LENGTH}),
    Rule(f"self.matches('{_PATH}')", f"not a path for an archive; valid: {_VALID_PATH}"),
]
"""A directory for files: below :data:`MOUNT`, or a URL."""
ArchiveMaster = Annotated[
    str, AfterValidator(_master), InSchema({"maxLength": 253}), Rule(f"self.matches('{_MASTER}')", _NO_MASTER)
]
"""A master of Spark."""


class ArchiveSpec(Model):
    """An archive of the messages, by a Spark job on a schedule; its BrokerCluster's `archives` must allow it."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.path.startsWith('{MOUNT}') || has(self.volumeClaimRef)",
            _NO_VOLUME,
            ".path",
        ),
    )

    schedule: Schedule
    """Schedule of the runs in UTC, as in a CronJob: minute, hour, day, month and weekday, or @hourly, @daily and so on.
    A run is skipped if the previous one has not finished."""
    path: ArchivePath
    """Directory of the files: a path below /archive on the volume of `volumeClaimRef`, or a URL s3a:// or hdfs://.
    Several topics may share it: each has directories of its own below it, `topic=NAME/date=YYYY-MM-DD`."""
    format: Literal["parquet"] = "parquet"
    """Format of the files."""
    suspend: bool = False
    """Whether runs are suspended. The subscription stays, so messages that are not archived stay stored."""
    file_size: FileSize = DEFAULT_FILE_SIZE
    """Approximate size at which a file is closed and the next one started."""
    merge_to: FileSize | None = None
    """Approximate size of the files into which smaller ones of a day are merged when the day is complete. Default: none
    are merged."""
    keep: Annotated[Duration, AfterValidator(_age), Rule(DURATION.where("self", "v > 0"), _NO_AGE)] | None = None
    """Age after which a complete day is removed from the archive, such as 90d, counted from the day's end. Default:
    never."""
    volume_claim_ref: Reference | None = None
    """The PersistentVolumeClaim that is mounted at /archive in the job's pods."""
    secret_ref: Reference | None = None
    """The Secret whose entries are environment variables of the job: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
    AWS_ENDPOINT_URL are used by s3a://."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Spark settings by name, such as `spark.driver.memory` or `spark.hadoop.fs.s3a.path.style.access`."""
    master: ArchiveMaster = LOCAL
    """Master of Spark: the job's own pod (local[*]), or executor pods created through the API server at
    k8s://https://kubernetes.default.svc; `serviceAccountName` then needs the permission to create pods."""
    image: str | None = Field(default=None, min_length=1)
    """Container image of the job, one of `archives.images`; the operator's if left out."""
    service_account_name: str | None = Field(default=None, min_length=1, max_length=253)
    """ServiceAccount of the job's pods, with its token in them; if left out the operator's setting, else the account
    `default` without a token."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """Requests and limits of the job's container (cpu, memory), as in a pod."""

    @model_validator(mode="after")
    def _has_its_volume(self) -> Self:
        if self.path.startswith(MOUNT) and self.volume_claim_ref is None:
            raise Contradiction([("path", _NO_VOLUME)])
        return self
