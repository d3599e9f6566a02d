"""Access of a pod to a store of backups: the URL, options of the command, variables, and a volume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from heliograph_api.resources.backup_spec import BackupDestination

from .literal_text import literal
from .stateful_set import Manifest

MOUNT: Final = "/backups"
#: The command writes its result there, and Kubernetes shows it in the pod's status.
RESULT: Final = "/dev/termination-log"
_VOLUME: Final = "backups"
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The way of a container to the backups of a destination."""

    url: str
    options: tuple[str, ...] = ()
    variables: tuple[Manifest, ...] = ()
    volumes: tuple[Manifest, ...] = ()
    mounts: tuple[Manifest, ...] = ()


def store_access(destination: BackupDestination) -> StoreAccess:
    """Return the access to a destination."""
    if destination.volume is not None:
        volume = destination.volume
        claim = {"name": _VOLUME, "persistentVolumeClaim": {"claimName": volume.claim_ref.name}}
        mount = {"name": _VOLUME, "mountPath": MOUNT}
        return StoreAccess(f"file://{MOUNT}/{volume.directory}", volumes=(claim,), mounts=(mount,))
    s3 = destination.s3
    assert s3 is not None
    options = [
        *(["--endpoint", literal(s3.endpoint)] if s3.endpoint else []),
        *(["--virtual-hosted"] if s3.virtual_hosted else []),
    ]
    # The command says which key is missing. A broker that was restored long ago has to start without the Secret, too.
    keys: list[Manifest] = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": s3.credentials_ref.name, "key": key, "optional": True}}}
        for key in _KEYS
    ]
    region = [{"name": "AWS_REGION", "value": literal(s3.region)}] if s3.region else []
    return StoreAccess(f"s3://{s3.bucket}/{s3.prefix}", tuple(options), (*keys, *region))
