"""Keeps the Secrets with the tokens of Heliograph's own programs."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from heliograph_operator.decide.program_tokens import ProgramToken, plan_program_token
from heliograph_operator.decide.server_certificate import AUTHORITIES
from heliograph_operator.decide.signed_tokens import Signer
from heliograph_operator.decide.stateful_set import metadata
from heliograph_operator.decide.token_secrets import decoded
from heliograph_operator.decide.user_tokens import SECRET_TYPE, Way

from .controller import Context
from .resource import Resource
from .secret_write import find_secret, write_secret

#: Labels of all Secrets with tokens. They have no name of a resource, which may be too long for a label.
CREDENTIALS: Final = {
    "app.kubernetes.io/name": "heliograph",
    "app.kubernetes.io/component": "credentials",
    "app.kubernetes.io/managed-by": "heliograph-operator",
}


async def keep_program_token(
    context: Context,
    resource: Resource,
    program: ProgramToken,
    way: Way,
    signer: Signer | None,
    now: datetime,
    *,
    renew_only: bool = False,
) -> None:
    """Issue a token or renew it, in a Secret that belongs to the resource. Without a signer, nothing changes.

    With ``renew_only``, a Secret that exists gets a token in time, and the authorities to trust, and nothing else
    changes: the resource is paused, and its programs are to go on. Raises :class:`.ObjectRefused`, or
    :class:`.client.KubeError`.
    """
    found = await find_secret(context, resource, program.secret)
    before = decoded(found)
    plan = plan_program_token(program, before, way, signer, now)
    if renew_only and (found is None or not (plan.is_new or before.get(AUTHORITIES, "") != way.authorities)):
        return
    if plan.entries is not None:
        about = metadata(resource.body, program.secret) | {"labels": CREDENTIALS}
        await write_secret(context, resource, about, plan.entries, found, SECRET_TYPE)
