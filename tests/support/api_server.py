"""The API server for tests that ask it many things: what it makes of a manifest, without a kubectl each time."""

from __future__ import annotations

import base64
import json
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, Request, build_opener

import yaml
from heliograph_api.crds.definitions import DEFINITIONS, GROUP, VERSION

_UNKNOWN = re.compile(r'unknown field "([^"]+)"')


@dataclass(frozen=True)
class Refusal:
    """A refusal of the API server, by the paths of the fields it named."""

    message: str
    fields: list[str]


@dataclass
class ApiServer:
    """Asks the API server that a kubeconfig names."""

    kubeconfig: Path
    _address: str = field(init=False)
    _headers: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        config = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._address = cluster["server"]
        context = ssl.create_default_context()
        if (authority := self._material(cluster, "certificate-authority")) is not None:
            context.load_verify_locations(cadata=authority.decode())
        if (certificate := self._material(user, "client-certificate")) is not None:
            key = self._material(user, "client-key")
            assert key is not None
            with tempfile.NamedTemporaryFile() as both:
                both.write(certificate + b"\n" + key)
                both.flush()
                context.load_cert_chain(both.name)
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        self._opener = build_opener(HTTPSHandler(context=context))

    def _material(self, section: dict[str, Any], name: str) -> bytes | None:
        if f"{name}-data" in section:
            return base64.b64decode(section[f"{name}-data"])
        return (self.kubeconfig.parent / section[name]).read_bytes() if name in section else None

    def create(self, namespace: str, resource: dict[str, Any], *, dry: bool = True) -> dict[str, Any] | Refusal:
        """Create a resource, or only ask whether it could be (``dry``); return it as stored, or why not."""
        plural = DEFINITIONS[resource["kind"]].plural
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}"
        return self._asked("POST", path, resource, dry=dry)

    def update(self, namespace: str, resource: dict[str, Any]) -> dict[str, Any] | Refusal:
        """Ask whether a resource that is there could become ``resource``; return it, or why not."""
        plural = DEFINITIONS[resource["kind"]].plural
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{resource['metadata']['name']}"
        return self._asked("PATCH", path, resource, dry=True)

    def _asked(self, method: str, path: str, body: dict[str, Any], *, dry: bool) -> dict[str, Any] | Refusal:
        query = "?fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = Request(
            self._address + path + query,
            data=json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": kind, **self._headers},
        )
        try:
            with self._opener.open(request, timeout=30) as answer:
                stored: dict[str, Any] = json.load(answer)
                return stored
        except HTTPError as error:
            with error:
                status = json.load(error)
        if status["code"] not in (400, 422):
            raise AssertionError(f"{method} {path}: {status['message']}")
        causes = status.get("details", {}).get("causes", [])
        # The API server lists fields that it skipped, because of an earlier error, as a cause of their own.
        named = [cause["field"] for cause in causes if "some validation rules were not checked" not in cause["message"]]
        return Refusal(status["message"], [*named, *_UNKNOWN.findall(status["message"])])
