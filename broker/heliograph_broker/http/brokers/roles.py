"""/heliograph/v1/roles/{role}: what is set for a role, beside its grants."""

from __future__ import annotations

from typing import Final

from aiohttp import web
from heliograph_api.resources.role_state import (
    COMMON_NAME,
    HOST_NAME,
    SERVICE_ACCOUNT,
    ProvenIdentity,
    RoleSettings,
)

from heliograph_broker.http.base.access import is_on
from heliograph_broker.http.base.context import BROKER, accepted, as_json, required_body
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Refusal, operation
from heliograph_broker.http.base.warning_header import warn
from heliograph_broker.security.authentication.provider import Unauthenticated
from heliograph_broker.security.authentication.roles import stated_role
from heliograph_broker.security.authorization.needs import Need

_PATH: Final = "/heliograph/v1/roles/{role}"
_WARNING: Final = "roles are kept and shown, but clients have none: authentication is not enabled"
_EXAMPLE: Final = '{"identities": [{"method": "certificate", "name": "DNS:billing.example.org"}]}'
_MAX_IDENTITIES: Final = 100
_MAX_CHARACTERS: Final = 600
#: How the names of identities begin, by their methods; those of issuers begin anyhow.
_BEGIN: Final = {
    "serviceAccount": (SERVICE_ACCOUNT,),
    "certificate": (COMMON_NAME, HOST_NAME),
    "oidc": ("",),
}


def _role(request: web.Request) -> str:
    """Return the role of the path. Raises :class:`ApiError` 400 for one that no client can have."""
    try:
        return stated_role(request.match_info["role"], "the path")
    except Unauthenticated as error:
        raise ApiError(400, str(error)) from None


def _check(index: int, identity: ProvenIdentity) -> None:
    """Check one identity. Raises :class:`ApiError` 400 naming the field that is wrong."""
    field, name = f"identities[{index}]", identity.name
    begins = [begin for begin in _BEGIN[identity.method] if name.startswith(begin) and len(name) > len(begin)]
    if not begins or len(name) > _MAX_CHARACTERS or not name.isprintable() or name != name.strip():
        valid = " or ".join(f"{begin}…" for begin in _BEGIN[identity.method])
        raise ApiError(
            400, f"{field}.name is not one of a {identity.method}; valid: {valid}, up to {_MAX_CHARACTERS} characters"
        )
    host = name.removeprefix(HOST_NAME)
    if identity.method == "certificate" and host != name and host != host.lower():
        # Those of certificates are compared so.
        raise ApiError(400, f"{field}.name should have small letters: {HOST_NAME}{host.lower()}")
    if bool(identity.issuer) != (identity.method == "oidc"):
        raise ApiError(400, f"{field}.issuer should be the URL of an issuer for oidc, and left out otherwise")


@operation("Get what is set for a role.", answers={200: RoleSettings, 404: Refusal}, needs=Need.SUPERUSER)
async def get_role(request: web.Request) -> web.Response:
    role = _role(request)
    settings = request.app[BROKER].roles.settings.get(role)
    if settings is None:
        raise ApiError(404, f"nothing is set for the role {role}")
    return as_json(settings)


@operation(
    "Set the identities that prove a role, each of which proves one role at most, and the limits of its clients.",
    body=RoleSettings,
    body_required=True,
    example=_EXAMPLE,
    needs=Need.SUPERUSER,
)
async def put_role(request: web.Request) -> web.Response:
    broker, role = request.app[BROKER], _role(request)
    settings = await required_body(request, RoleSettings, _EXAMPLE)
    if len(settings.identities) > _MAX_IDENTITIES:
        raise ApiError(400, f"identities has {len(settings.identities)} entries; valid: up to {_MAX_IDENTITIES}")
    for index, identity in enumerate(settings.identities):
        _check(index, identity)
    broker.roles.put(role, settings)
    if not is_on(request):
        warn(request, _WARNING)
    return await accepted(broker)


@operation("Forget what is set for a role; its grants stay.", needs=Need.SUPERUSER)
async def delete_role(request: web.Request) -> web.Response:
    broker = request.app[BROKER]
    broker.roles.delete(_role(request))
    return await accepted(broker)


def routes() -> list[web.RouteDef]:
    return [web.get(_PATH, get_role), web.put(_PATH, put_role), web.delete(_PATH, delete_role)]
