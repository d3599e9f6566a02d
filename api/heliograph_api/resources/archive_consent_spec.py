"""Consent of a BrokerCluster to archives of Topics: the things they may use, and the pods of their jobs."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator, Field

from .archive_spec import MOUNT, ArchiveMaster, ArchivePath
from .cel import InSchema
from .fields import MAX_REFERENCE, Model, Reference, Unique, named_once
from .pod_spec import Opaque

_MAX_ITEMS: Final = 100
_MAX_IMAGE_LENGTH: Final = 1024
_MAX_SETTING_LENGTH: Final = 253

_Name = Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE)]
_Image = Annotated[str, Field(min_length=1, max_length=_MAX_IMAGE_LENGTH)]
_Setting = Annotated[str, Field(min_length=1, max_length=_MAX_SETTING_LENGTH)]


class ArchiveJobsSpec(Model):
    """The pods of archive jobs."""

    image_pull_secrets: Annotated[
        list[Reference],
        Field(max_length=_MAX_ITEMS),
        AfterValidator(named_once),
        InSchema({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
    ] = Field(default_factory=list)
    """Secrets the image is pulled with, for the job's pod and its executors."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels required to run the job's pod and its executors, as in a pod."""
    tolerations: list[Opaque] = Field(default_factory=list)
    """Taints of nodes the job's pod tolerates, as in a pod."""
    priority_class_name: str | None = Field(default=None, min_length=1, max_length=MAX_REFERENCE)
    """PriorityClass of the job's pod."""
    resources: Opaque = Field(default_factory=lambda: {"requests": {"cpu": "100m", "memory": "512Mi"}})
    """Requests and limits of the job's container if the Topic names none; left out: requests of 100m and 512Mi."""
    active_deadline_seconds: int = Field(default=86_400, ge=60, le=2**31 - 1)
    """Seconds after which a run is stopped and counts as failed: one that hangs would block all later ones. The next
    run continues where it stopped."""


class ArchivesSpec(Model):
    """Consent to archives, which let people who write Topics run pods."""

    enabled: bool = False
    """Whether Topics may have an `archive`. If not, none has a CronJob."""
    images: Annotated[Unique[_Image], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """Images that a Topic may name, beside the operator's."""
    service_accounts: Annotated[Unique[_Name], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """ServiceAccounts that a Topic may name."""
    secrets: Annotated[Unique[_Name], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """Secrets that a Topic may name."""
    volume_claims: Annotated[Unique[_Name], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """PersistentVolumeClaims that a Topic may name."""
    paths: Annotated[Unique[ArchivePath], Field(max_length=_MAX_ITEMS)] = Field(default_factory=lambda: [MOUNT])
    """Directories for files, with those below: /archive is every directory of an allowed volume, s3a://BUCKET a whole
    bucket. Left out: /archive."""
    masters: Annotated[Unique[ArchiveMaster], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """Spark masters that a Topic may name, beside the job's own pod (local). A master gets the token of the job's
    ServiceAccount."""
    conf: Annotated[Unique[_Setting], Field(max_length=_MAX_ITEMS)] = Field(default_factory=list)
    """Spark settings that a Topic may have, beside those of memory, cores and the number of executors; `NAME.*` is all
    that begin with NAME and a dot. Some run any code (spark.jars), or any image (spark.kubernetes.container.image)."""
    jobs: ArchiveJobsSpec = Field(default_factory=ArchiveJobsSpec)
    """Pods of the jobs."""
