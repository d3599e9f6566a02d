"""Declares an HTTP handler's parameters and answers beside it; the OpenAPI description is made from them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from heliograph_broker.security.authorization.needs import Need, Resource

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ATTRIBUTE = "heliograph_operation"
JSON = "application/json"


class Refusal(msgspec.Struct):
    """Why the request was refused, for people."""

    reason: str


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of the query: its JSON type (bool, int, str) and its meaning."""

    name: str
    kind: type
    description: str
    required: bool = False
    choices: tuple[str, ...] = ()


class Media(msgspec.Struct, frozen=True):
    """A body or answer that is not JSON: its possible content types, and the type of its content."""

    types: tuple[str, ...]
    kind: Any = str


class Operation(msgspec.Struct, frozen=True):
    """One handler, for people and machines. ``body`` and the values of ``answers`` are types msgspec knows.

    ``answers`` maps statuses to the type of a JSON body, None for no body, ``str`` for plain text, ``bytes`` for
    binary data, or a :class:`Media`. Refusals that a path of this kind can always give (400, 404, 405, 409, 412 with a
    reason) need not be named; others are, with :class:`Refusal`. ``body`` may be a :class:`Media` too.
    """

    summary: str
    body: Any = None
    body_required: bool = False
    query: tuple[Parameter, ...] = ()
    answers: Mapping[int, Any] = msgspec.field(default_factory=lambda: {204: None})
    #: A body as somebody would send it, as JSON.
    example: str = ""
    #: The right its client needs; None: superusers only.
    needs: Need | None = None
    #: The object of that right; None: the most particular one that the path names.
    on: Callable[[web.Request], Resource] | None = None


def operation(
    summary: str,
    *,
    body: Any = None,
    body_required: bool = False,
    query: tuple[Parameter, ...] = (),
    answers: Mapping[int, Any] | None = None,
    example: str = "",
    needs: Need | None = None,
    on: Callable[[web.Request], Resource] | None = None,
) -> Callable[[Handler], Handler]:
    """Attach an :class:`Operation` to a handler. Without ``answers`` it answers 204.

    ``needs`` is the right that the client needs, on the object that ``on`` returns for a request (see
    :mod:`.access`); without it, the operation is for superusers.
    """

    def attach(handler: Handler) -> Handler:
        given = answers if answers is not None else {204: None}
        described = Operation(summary, body, body_required, query, given, example, needs, on)
        setattr(handler, _ATTRIBUTE, described)
        return handler

    return attach


def operation_of(handler: object) -> Operation | None:
    """Return what :func:`operation` attached to ``handler``."""
    found = getattr(handler, _ATTRIBUTE, None)
    return found if isinstance(found, Operation) else None
