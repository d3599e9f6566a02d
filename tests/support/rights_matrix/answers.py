"""Asks for a broker's answer in each cell of the matrix, in the form in which Pulsar's answers are kept.

An answer is the name of an error or a status; kinds of clients with the same answer stand together, so that a row reads
like ``{"200": "root boss", "403": "neighbour foreign"}``. A status other than 401 and 403 means that the client may: a
request of the matrix may be refused for what it says, after its client's rights were found sufficient.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from heliograph_api.protocol import wire_pb2 as wire

from tests.support.tokens import Signer
from tests.support.wire_client import Frame, Type
from tests.support.wire_specimens import SPECIMENS

from . import commands
from .routes import HAS, ROUTES, Route, request_of
from .shop import GRANTED_HERE_ONLY, PROXY, PROXY_WITHOUT_RIGHTS, Caller, Shop

#: By row ("GET /path" or the name of a command) and answer: the kinds of clients, separated by spaces.
Matrix = dict[str, dict[str, str]]
#: Superusers and proxies of a broker that the whole matrix is asked of.
SUPERUSERS: Final = ("root", "superuser")
PROXIES: Final = (*commands.PROXIES, PROXY, PROXY_WITHOUT_RIGHTS)
#: The answer of a broker that does not have the route.
ABSENT: Final = "absent"
#: Kinds of clients that are not asked for: only Heliograph has their rights.
HERE_ONLY: Final = GRANTED_HERE_ONLY | {"monitor", "saver"}
#: Asked last, as it may end the broker.
_LAST: Final = "/admin/v2/brokers/shutdown"


class Keys:
    """The keys of a broker, and another one that it does not know; in files of a directory."""

    def __init__(self, signer: Signer, directory: Path) -> None:
        self.signer = signer
        self.foreign = Signer(directory / "foreign.key", b"the key of somebody else, which is long enough")


def http_clients(keys: Keys) -> dict[str, dict[str, str]]:
    """Return the headers of every kind of client, by its name; superusers last."""

    def bearer(token: str, **headers: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"} | {name.replace("_", "-"): value for name, value in headers.items()}

    token = keys.signer.token
    unknown = {
        "none": {},
        "malformed": bearer("x.y.z"),
        "expired": bearer(token("root", expires_in_s=-60)),
        "forged": bearer(keys.foreign.token("root")),
        "proxy-for-nobody": bearer(token(PROXY)),
        "no-proxy": bearer(token("boss"), X_Original_Principal="producer"),
        "proxy-for-producer": bearer(token(PROXY), X_Original_Principal="producer"),
        "proxy-without-rights": bearer(token(PROXY_WITHOUT_RIGHTS), X_Original_Principal="producer"),
    }
    return unknown | {role: bearer(token(role)) for role in HAS if role not in HERE_ONLY}


def http_answers(http_url: str, keys: Keys) -> Matrix:
    """Ask every route that is not Heliograph's own as every kind of client."""
    asked = [route for route in ROUTES if not route.path.startswith("/heliograph/")]
    by_route: dict[Route, dict[str, list[str]]] = {route: {} for route in asked}
    with closing(Shop(http_url, keys.signer.token("root"))) as shop:
        shop.open()
        for kind, headers in http_clients(keys).items():
            with closing(Caller(http_url, headers)) as caller:
                for route in sorted(asked, key=lambda route: route.path == _LAST):
                    reply = caller.send(route.method, *request_of(route))
                    # A broker gives a reason, and the server that it is part of does not.
                    is_absent = reply.status in (404, 405) and b'"reason"' not in reply.body
                    answer = ABSENT if is_absent else str(reply.status)
                    by_route[route].setdefault(answer, []).append(kind)
                    if route.method != "GET" and reply.status < 400 and route.path != _LAST:
                        shop.mend()
    return {f"{route.method} {route.path}": _row(row) for route, row in by_route.items()}


def command_answers(service_url: str, http_url: str, keys: Keys, *, patient: bool = False) -> Matrix:
    """Send every command as every kind of client; ``patient`` as for :func:`.commands.answers_to`."""
    commands.grant_all(http_url, keys.signer.token("superuser"))
    clients = {role.name: commands.connect_fields(role, keys.signer) for role in commands.KNOWN}
    clients |= {
        kind.replace(" ", "-"): fields for kind, fields in commands.unknown_clients(keys.signer, keys.foreign).items()
    }
    matrix = {}
    for name in sorted(SPECIMENS):
        row: dict[str, list[str]] = {}
        for kind, fields in clients.items():
            answers = commands.answers_to(service_url, name, fields, patient=patient)
            row.setdefault(_shown(answers), []).append(kind)
        matrix[name] = _row(row)
    return matrix


def texts(service_url: str, http_url: str, keys: Keys) -> dict[str, Any]:
    """Return the reasons that refused clients get, by their kind: of CONNECT, and of a request by HTTP."""
    found: dict[str, Any] = {}
    for kind, fields in commands.unknown_clients(keys.signer, keys.foreign).items():
        first = commands.answers_to(service_url, "ping", fields, patient=True)[0]
        found[f"CONNECT {kind}"] = _error(first)
    clients = http_clients(keys)
    for kind in (*(kind for kind in clients if kind not in HAS), "foreign"):
        with closing(Caller(http_url, clients[kind])) as caller:
            reply = caller.send("GET", "/admin/v2/tenants")
        found[f"GET {kind}"] = {
            "status": reply.status,
            "type": reply.headers.get_content_type(),
            "WWW-Authenticate": reply.headers["WWW-Authenticate"],
            "reason": _reason(reply.body),
        }
    return found


def kinds_of(matrix: Matrix, row: str) -> Mapping[str, str]:
    """Return the answer to each kind of client in a row."""
    return {kind: answer for answer, kinds in matrix[row].items() for kind in kinds.split()}


def _row(row: Mapping[str, Iterable[str]]) -> dict[str, str]:
    return {answer: " ".join(kinds) for answer, kinds in sorted(row.items())}


def _shown(answers: list[Frame]) -> str:
    """Return the names of the errors in the answers, or what becomes of a command that has none."""
    errors = sorted({wire.ServerError.Name(code) for frame in answers for code in commands.errors_in(frame)})  # type: ignore[arg-type]
    if errors:
        return "+".join(errors)
    return "handled" if any(frame.command.type == Type.PONG for frame in answers) else "closed"


def _error(frame: Frame) -> dict[str, str]:
    return {"error": wire.ServerError.Name(frame.body.error), "message": frame.body.message}


def _reason(body: bytes) -> str:
    """Return the reason of a refusal: of a JSON document, or of the page that a server of Java shows."""
    text = body.decode()
    page = re.search(r"<tr><th>MESSAGE:</th><td>(.*?)</td>", text)
    return page[1] if page else str(json.loads(text)["reason"])
