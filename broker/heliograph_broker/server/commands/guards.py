"""The right that each command of a client needs: with authorization, it is checked before the command is handled.

A command that is not in this table is refused. Those that concern a producer or consumer of the client's own need
nothing more than what was needed to open it. A consumer whose role loses the right is closed within a second; until
then, those that change or show its subscription are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.protocol.frames import FrameError
from heliograph_api.values.names import InvalidName, NamespaceName, TopicName

from heliograph_broker.messaging.base.errors import NotAuthorized
from heliograph_broker.security.authorization.needs import Decision, Need, Resource, on_namespace, on_topic
from heliograph_broker.server.connection import Handler
from heliograph_broker.server.session import Session

from . import authentication_commands
from .lookup_commands import COORDINATORS, refuse_lookup, refuse_partitioned_metadata
from .schema_commands import refuse_get_or_create_schema, refuse_get_schema

_Type = wire.BaseCommand

#: Refuses a request of a session in the form that its client expects.
Refuse = Callable[[Session, Any, NotAuthorized], None]


def _refuse(session: Session, request: Any, error: NotAuthorized) -> None:
    session.refuse(request.request_id, error)


def _refuse_stats(session: Session, request: wire.CommandConsumerStats, error: NotAuthorized) -> None:
    answer = wire.BaseCommand(type=wire.BaseCommand.CONSUMER_STATS_RESPONSE)
    response = answer.consumerStatsResponse
    response.request_id = request.request_id
    response.error_code = wire.AuthorizationError
    response.error_message = str(error)
    session.output.send(answer)


class Guard(NamedTuple):
    """The need of a command, on the topic or namespace that it names."""

    need: Need
    #: The field of the command that has the request.
    field: str = ""
    refuse: Refuse = _refuse
    of_namespace: bool = False
    #: It names a consumer of the client's own, whose subscription it changes or shows.
    of_consumer: bool = False


#: A command about what its client has opened, or that the broker refuses to everybody.
_OWN: Final = Guard(Need.IDENTITY)

GUARDS: Final[dict[int, Guard]] = {
    _Type.PING: _OWN,
    _Type.PONG: _OWN,
    _Type.LOOKUP: Guard(Need.LOOKUP, "lookupTopic", refuse_lookup),
    _Type.PARTITIONED_METADATA: Guard(Need.LOOKUP, "partitionMetadata", refuse_partitioned_metadata),
    _Type.GET_TOPICS_OF_NAMESPACE: Guard(Need.LOOKUP, "getTopicsOfNamespace", of_namespace=True),
    _Type.WATCH_TOPIC_LIST: Guard(Need.LOOKUP, "watchTopicList", of_namespace=True),
    _Type.WATCH_TOPIC_LIST_CLOSE: _OWN,
    _Type.PRODUCER: Guard(Need.PRODUCE, "producer"),
    _Type.CLOSE_PRODUCER: _OWN,
    _Type.SUBSCRIBE: Guard(Need.CONSUME, "subscribe"),
    _Type.FLOW: _OWN,
    _Type.ACK: _OWN,
    _Type.REDELIVER_UNACKNOWLEDGED_MESSAGES: _OWN,
    _Type.UNSUBSCRIBE: Guard(Need.IDENTITY, "unsubscribe", of_consumer=True),
    _Type.SEEK: Guard(Need.IDENTITY, "seek", of_consumer=True),
    _Type.GET_LAST_MESSAGE_ID: Guard(Need.IDENTITY, "getLastMessageId", of_consumer=True),
    _Type.CONSUMER_STATS: Guard(Need.IDENTITY, "consumerStats", _refuse_stats, of_consumer=True),
    _Type.CLOSE_CONSUMER: _OWN,
    _Type.GET_SCHEMA: Guard(Need.LOOKUP, "getSchema", refuse_get_schema),
    _Type.GET_OR_CREATE_SCHEMA: Guard(Need.PRODUCE, "getOrCreateSchema", refuse_get_or_create_schema),
    _Type.TC_CLIENT_CONNECT_REQUEST: _OWN,
    _Type.NEW_TXN: _OWN,
    _Type.ADD_PARTITION_TO_TXN: _OWN,
    _Type.ADD_SUBSCRIPTION_TO_TXN: _OWN,
    _Type.END_TXN: _OWN,
}

#: What a need is called in a refusal.
_MAY: Final = {Need.LOOKUP: "look up", Need.PRODUCE: "produce to", Need.CONSUME: "consume from"}


def guarded(handlers: dict[int, Handler]) -> dict[int, Handler]:
    """Return the handlers of a broker with authentication: each asks first whether its client may do this."""
    found = {kind: _guarded(handler, GUARDS.get(kind)) for kind, handler in handlers.items()}
    found[_Type.CONNECT] = authentication_commands.connect
    found[_Type.AUTH_RESPONSE] = authentication_commands.auth_response
    return found


def _guarded(handler: Handler, guard: Guard | None) -> Handler:
    if guard is None:
        return _nobody
    if guard.of_consumer:
        return _of_own_consumer(handler, guard)
    if guard.need is Need.IDENTITY:
        # Nothing is handled before the client's identity is known.
        return handler

    def handle(session: Session, command: wire.BaseCommand) -> None:
        request = getattr(command, guard.field)
        decision = _decision(session, guard, request)
        if decision is None or decision.allowed:
            handler(session, command)
            return
        guard.refuse(session, request, NotAuthorized(_reason(session, guard, request, decision)))

    return handle


def _of_own_consumer(handler: Handler, guard: Guard) -> Handler:
    """Return a handler that refuses a command about an open consumer whose role has lost the right to consume."""

    def handle(session: Session, command: wire.BaseCommand) -> None:
        request = getattr(command, guard.field)
        consumer = session.consumers.open.get(request.consumer_id)
        if consumer is not None:
            identity, topic, name = session.known_identity, consumer.subscription.topic.name, consumer.subscription.name
            # Decided already, and counted, when it subscribed.
            decision = session.security.authorizer.explain(identity, Need.CONSUME, on_topic(topic, name))
            if not decision.allowed:
                reason = f"role {identity.role!r} may not {_MAY[Need.CONSUME]} {topic}: {decision.rule}"
                guard.refuse(session, request, NotAuthorized(reason))
                return
        handler(session, command)

    return handle


def _nobody(session: Session, command: wire.BaseCommand) -> None:
    raise FrameError(f"nobody may send {_Type.Type.Name(command.type)}: no rule allows it")


def _decision(session: Session, guard: Guard, request: Any) -> Decision | None:
    """Return whether the client may do it; None if its name is not valid, which the handler says better."""
    identity, authorizer = session.known_identity, session.security.authorizer
    principal: str = getattr(request, "original_principal", "")
    if principal not in ("", identity.role):
        return Decision(False, "the original principal is not that of the connection")
    try:
        on = _object(guard, request)
    except InvalidName:
        return None
    if on.topic == COORDINATORS and guard.need is Need.LOOKUP:
        return Decision(True, "every client may ask whether there are transactions")
    decision = authorizer.decide(identity, guard.need, on)
    if decision.allowed and isinstance(request, wire.CommandProducer) and request.initial_subscription_name:
        # It is created with the producer.
        subscribed = msgspec.structs.replace(on, subscription=request.initial_subscription_name)
        return authorizer.decide(identity, Need.CONSUME, subscribed)
    return decision


def _object(guard: Guard, request: Any) -> Resource:
    """Return what a request is about. Raises :class:`InvalidName`."""
    if guard.of_namespace:
        return on_namespace(str(NamespaceName.parse(request.namespace)))
    subscription = request.subscription if guard.need is Need.CONSUME else ""
    return on_topic(TopicName.parse(request.topic), subscription)


def _reason(session: Session, guard: Guard, request: Any, decision: Decision) -> str:
    what = request.namespace if guard.of_namespace else request.topic
    return f"role {session.known_identity.role!r} may not {_MAY[guard.need]} {what}: {decision.rule}"
