"""The logs of pods are searched for the private keys and tokens in the Secrets beside them."""

from __future__ import annotations

import base64
import json
from typing import Any, cast

import jwt
import pytest

from tests.support.certificates import Authority
from tests.support.cluster import Cluster, ClusterCommandError
from tests.support.pod_logs import secrets_in_logs
from tests.support.secret_watch import SecretWatch

TOKEN = jwt.encode({"sub": "billing"}, b"a key of tests that is long enough for HS256", "HS256")
KEY = Authority().issue().key.decode()


def secret(name: str, **entries: str) -> dict[str, Any]:
    data = {entry.replace("_", "."): base64.b64encode(text.encode()).decode() for entry, text in entries.items()}
    return {"kind": "Secret", "metadata": {"name": name}, "data": data}


SECRETS = [
    secret("billing-token", token=TOKEN, uri="pulsar://main:6650", type="pulsar"),
    secret("main-token-signing-key", keys_json=json.dumps([{"id": "first", "private": KEY}])),
]


def container(name: str = "broker", *, restarts: int = 0, state: str = "running") -> dict[str, Any]:
    return {"name": name, "restartCount": restarts, "state": {state: {}}}


class Kubernetes:
    """Has Secrets and a pod, whose containers have logs."""

    def __init__(self, logs: dict[tuple[str, bool], str], *containers: dict[str, Any]) -> None:
        self._logs = logs
        self._pod = {"kind": "Pod", "metadata": {"name": "main-0"}, "status": {"containerStatuses": list(containers)}}

    def kubectl_json(self, *arguments: str) -> dict[str, Any]:
        assert arguments == ("get", "secrets,pods", "-n", "shop")
        return {"items": [*SECRETS, self._pod]}

    def kubectl(self, *arguments: str) -> str:
        assert arguments[:3] == ("logs", "main-0", "-c")
        try:
            return self._logs[arguments[3], "--previous" in arguments]
        except KeyError:
            raise ClusterCommandError(f"previous terminated container {arguments[3]!r} not found") from None


def found(logs: dict[tuple[str, bool], str], *containers: dict[str, Any]) -> list[str]:
    return secrets_in_logs(cast(Cluster, Kubernetes(logs, *containers)), "shop", SecretWatch())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"refused {TOKEN}", "token of Secret billing-token"),
        (f"cannot read {KEY.splitlines()[2]}", "keys.json of Secret main-token-signing-key"),
    ],
    ids=["a token", "a line of a private key"],
)
def test_a_secret_in_the_log_of_a_pod_is_named_and_not_shown(text: str, name: str) -> None:
    assert found({("broker", False): f"started\n{text}\n"}, container()) == [f"broker of pod main-0: {name}"]


def test_a_container_that_was_started_again_has_two_logs() -> None:
    logs = {("broker", False): "started", ("broker", True): TOKEN}
    assert found(logs, container(restarts=1)) == ["broker of pod main-0: token of Secret billing-token"]


def test_addresses_are_no_secrets_and_a_container_without_a_log_has_none() -> None:
    logs = {("broker", False): "serves pulsar://main:6650"}
    assert found(logs, container(restarts=1), container("backup", state="waiting")) == []
