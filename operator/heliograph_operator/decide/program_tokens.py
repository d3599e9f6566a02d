"""The tokens of Heliograph's own programs: a role and a Secret for each, and how long a token is valid.

Each program has the rights that it uses and no others; none is a superuser. The tokens are renewed long before their
end, so that programs go on while the operator is away for some hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from heliograph_api.resources.authentication_spec import ARCHIVE_ROLES, BACKUP_ROLE, METRICS_ROLE
from heliograph_api.resources.user_spec import TokenProof

from .signed_tokens import Signer
from .user_tokens import TOKEN, TokenPlan, Way, plan_token

_HOUR_MS: Final = 3600 * 1000
_VALIDITY_MS: Final = 24 * _HOUR_MS
#: The directory of a container with the token, which the kubelet keeps current.
TOKEN_PATH: Final = "/etc/heliograph/token"
#: The file with the token.
TOKEN_FILE: Final = f"{TOKEN_PATH}/{TOKEN}"
_VOLUME: Final = "token"


@dataclass(frozen=True, slots=True)
class ProgramToken:
    """The role of a program, and the name of the Secret with its token."""

    role: str
    secret: str


def metrics_token(cluster: str) -> ProgramToken:
    """Return that of Prometheus."""
    return ProgramToken(METRICS_ROLE, f"{cluster}-metrics-token")


def backup_token(cluster: str) -> ProgramToken:
    """Return that of the Jobs that make Backups."""
    return ProgramToken(BACKUP_ROLE, f"{cluster}-backup-token")


def archive_token(namespace: str, topic: str, cron_job: str) -> ProgramToken:
    """Return that of the runs of one archive, by the Topic's Kubernetes namespace and name and its CronJob's name."""
    return ProgramToken(f"{ARCHIVE_ROLES}{namespace}/{topic}", f"{cron_job}-token")


def plan_program_token(
    program: ProgramToken, found: Mapping[str, str], way: Way, signer: Signer | None, now: datetime
) -> TokenPlan:
    """Return the plan for a Secret with the entries ``found``.

    A token is replaced when a third of its validity has passed.
    """
    longest_ms = _VALIDITY_MS if signer is None else int(signer.longest.total_seconds() * 1000)
    validity_ms = min(_VALIDITY_MS, longest_ms)
    proof = TokenProof.model_construct(validity=validity_ms, rotate_before=validity_ms * 2 // 3)
    return plan_token(proof, program.role, found, way, signer, now)


def token_volume(secret: str, *, whole: bool = False) -> dict[str, Any]:
    """Return the volume of a pod with the token, and nothing else of its Secret unless it is to have the ``whole``."""
    items = {} if whole else {"items": [{"key": TOKEN, "path": TOKEN}]}
    return {"name": _VOLUME, "secret": {"secretName": secret, **items}}


def token_mount() -> dict[str, Any]:
    """Return the mount of the volume."""
    return {"name": _VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}
