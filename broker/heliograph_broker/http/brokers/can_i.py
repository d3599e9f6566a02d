"""GET /heliograph/v1/auth/can-i: whether a role may do something, and the rule that decides."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from heliograph_broker.http.base.access import AUTHORIZER, named
from heliograph_broker.http.base.authentication import IDENTITY
from heliograph_broker.http.base.context import as_json
from heliograph_broker.http.base.errors import ApiError
from heliograph_broker.http.base.operations import Parameter, Refusal, operation
from heliograph_broker.security.authorization.needs import Need
from heliograph_broker.security.identity import Identity

ACTIONS: Final = {"produce": Need.PRODUCE, "consume": Need.CONSUME, "admin": Need.ADMIN}

_ACTION = Parameter("action", str, "The action asked about.", required=True, choices=tuple(ACTIONS))
_TOPIC = Parameter("topic", str, "The topic; without one, the namespace.")
_NAMESPACE = Parameter("namespace", str, "The namespace, as tenant/namespace; ignored beside a topic.")
_SUBSCRIPTION = Parameter("subscription", str, "The subscription to consume with; without one, any.")
_ROLE = Parameter("role", str, "The role; without one, that of the client that asks.")


class Answer(msgspec.Struct):
    """Whether the role may, and the rule that decides it, for people."""

    allowed: bool
    rule: str


@operation(
    "Tell whether a role may do something, and by which rule: one's own role, or any where one is an administrator.",
    query=(_ACTION, _TOPIC, _NAMESPACE, _SUBSCRIPTION, _ROLE),
    answers={200: Answer, 412: Refusal},
    needs=Need.IDENTITY,
)
async def can_i(request: web.Request) -> web.Response:
    asked = request.query
    need = ACTIONS.get(asked.get("action", ""))
    if need is None:
        raise ApiError(400, f"action should be one of {', '.join(ACTIONS)}, not '{asked.get('action', '')}'")
    if not asked.get("topic") and not asked.get("namespace"):
        raise ApiError(400, "the query needs a topic or a namespace, for example topic=persistent://shop/orders/new")
    on = named(asked.get("topic", ""), asked.get("namespace", ""), asked.get("subscription", ""))
    authorizer = request.app.get(AUTHORIZER)
    if authorizer is None:
        return as_json(Answer(True, "authorization is not enabled: every client may do everything"))
    client = request[IDENTITY]
    role = asked.get("role") or client.role
    if role != client.role:
        administers = authorizer.decide(client, Need.ADMIN, on)
        if not administers.allowed:
            raise ApiError(403, f"only administrators may ask about another role than their own: {administers.rule}")
        client = Identity(role, "")
    return as_json(Answer(*authorizer.explain(client, need, on)))


def routes() -> list[web.RouteDef]:
    return [web.get("/heliograph/v1/auth/can-i", can_i)]
