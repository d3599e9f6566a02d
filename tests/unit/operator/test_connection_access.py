"""The credentials of a BrokerConnection come from the Secrets and ConfigMaps that it names, and go nowhere else."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from heliograph_api.resources.connection_spec import BrokerConnectionSpec
from heliograph_operator.connection.connection_access import AccessMissing, access_of
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import Kind

from .api_server import ApiServer
from .bodies import body


def secret(name: str, **entries: bytes) -> dict[str, Any]:
    return {**body("Secret", name), "data": {key: base64.b64encode(each).decode() for key, each in entries.items()}}


def spec(**fields: Any) -> BrokerConnectionSpec:
    return BrokerConnectionSpec.model_validate({"adminUrl": "https://pulsar:8443", **fields})


TOKEN: dict[str, Any] = {"auth": {"secretRef": {"name": "pulsar"}}}


class Forbidding(ApiServer):
    """An API server that lets nobody read Secrets."""

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        raise KubeRefused(403, "Forbidden", f"secrets {name} is forbidden")


async def test_a_token_and_authorities_are_read_and_not_shown() -> None:
    server = ApiServer(
        secret("pulsar", token=b"s3cret\n"), {**body("ConfigMap", "authorities"), "data": {"ca.crt": "PEM"}}
    )
    access = await access_of(server, "team", spec(**TOKEN, tls={"configMapRef": {"name": "authorities"}}))
    assert (access.http_url, access.token, access.trusted) == ("https://pulsar:8443", "s3cret", "PEM")
    assert "s3cret" not in f"{access} {access!r}"
    of_secret = spec(tls={"secretRef": {"name": "pulsar", "key": "token"}})
    assert (await access_of(server, "team", of_secret)).trusted == "s3cret\n"


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        (ApiServer(), "spec.auth.secretRef.name: there is no Secret pulsar"),
        (ApiServer(secret("pulsar", other=b"x")), "entry token; valid: other"),
        (ApiServer(secret("pulsar", token=b"\xff")), "is no text"),
        (ApiServer(secret("pulsar", token=b"")), "is no token"),
        (ApiServer(secret("pulsar", token=b"two\nlines")), "is no token"),
        (Forbidding(), "valid: one that its chart names in connections.secrets"),
        # That of another Kubernetes namespace is none of its own.
        (
            ApiServer({**secret("pulsar", token=b"x"), "metadata": {"name": "pulsar", "namespace": "other"}}),
            "is no Sec",
        ),
    ],
)
async def test_what_is_missing_is_named(server: ApiServer, problem: str) -> None:
    with pytest.raises(AccessMissing, match=r"^spec\.auth\.secretRef") as missing:
        await access_of(server, "team", spec(**TOKEN))
    assert problem in str(missing.value)


@pytest.mark.parametrize("blank", ["", " \n"])
async def test_an_entry_without_authorities_does_not_mean_those_of_the_system(blank: str) -> None:
    server = ApiServer({**body("ConfigMap", "authorities"), "data": {"ca.crt": blank}})
    with pytest.raises(AccessMissing, match=r"^spec\.tls\.configMapRef\.key: .* is empty; valid: certificates in PEM"):
        await access_of(server, "team", spec(tls={"configMapRef": {"name": "authorities"}}))
