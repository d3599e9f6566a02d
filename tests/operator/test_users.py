"""Users on a real Kubernetes: a program that mounts the Secret may do what the User states, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import Cluster, ClusterCommandError
from tests.support.cluster_fixtures import Images

from .in_network import SPEC, Brokers, OperatorInNetwork
from .resources import Resources

TOKEN = [{"token": {"secretName": "billing-token", "validity": "1h", "rotateBefore": "30m"}}]
CONSUME = [{"namespace": "shop/payments", "actions": ["consume"]}]


@pytest.fixture
def resources(
    cluster: Cluster, images: Images, definitions: None, kube_namespace: str, tmp_path: Path
) -> Iterator[Resources]:
    """A BrokerCluster with authentication, and Tenant, Namespace and Topic on it."""
    image = ("--broker-image", images["broker"], "--operator-namespace", kube_namespace, "--lease", "operator")
    process = OperatorInNetwork(tmp_path / "operator.log", cluster, kube_namespace, *image)
    found = Resources(cluster, kube_namespace)
    process.launch()
    try:
        authentication = {"enabled": True, "serviceAccounts": {"enabled": True}}
        found.apply("BrokerCluster", "main", {**SPEC, "authentication": authentication})
        Brokers(found).wait_observed()
        found.wait_ready("BrokerCluster", "main", within_s=180)
        found.family()
        yield found
    finally:
        process.close()
        found.remove_finalizers()
    log = process.log_tail(100_000)
    assert "Traceback" not in log, process.log_tail(120)
    assert "eyJ" not in log, "no token is logged"


def entries(resources: Resources, name: str = "billing-token") -> dict[str, str]:
    """Return the entries of a Secret."""
    found = resources.cluster.kubectl_json("get", "secret", name, "-n", resources.namespace)
    return {key: base64.b64decode(text).decode() for key, text in found["data"].items()}


def may(resources: Resources, token: str, path: str, method: str = "GET", body: Any = None) -> int:
    """Return the status of a request with a token, from within the broker's pod."""
    code = (
        "import json, sys, urllib.request, urllib.error\n"
        "token, method, url, body = json.load(sys.stdin)\n"
        "data = None if body is None else json.dumps(body).encode()\n"
        "headers = {'Authorization': 'Bearer ' + token, 'Content-Type': 'application/json'}\n"
        "request = urllib.request.Request(url, data, headers, method=method)\n"
        "try: print(urllib.request.urlopen(request).status)\n"
        "except urllib.error.HTTPError as error: print(error.code)"
    )
    given = json.dumps([token, method, f"http://127.0.0.1:8080{path}", body])
    program = f"import io, sys; sys.stdin = io.StringIO({given!r})\n{code}"
    command = ("exec", "main-0", "-c", "broker", "-n", resources.namespace, "--", "python", "-c", program)
    return int(resources.cluster.kubectl(*command).strip())


ORDERS = "/admin/v2/persistent/shop/payments/orders"


def test_a_user_has_a_token_and_the_rights_that_it_states(resources: Resources) -> None:
    resources.apply(
        "User", "billing", {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": CONSUME}
    )
    resources.wait_ready("User", "billing")
    found = entries(resources)
    assert found["type"] == "pulsar"
    assert found["uri"] == f"pulsar://{found['host']}:{found['port']}"
    assert may(resources, found["token"], f"{ORDERS}/subscriptions") == 200
    assert may(resources, found["token"], "/admin/v2/tenants") == 403
    status = resources.status("User", "billing")
    assert status["role"] == f"{resources.namespace}/billing"
    assert status["tokenExpires"]
    assert resources.condition("User", "billing", "CredentialsIssued")["status"] == "True"
    # A right that the User does not state any more is gone.
    resources.apply("User", "billing", {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": []})
    resources.wait("the right is gone", lambda: may(resources, found["token"], f"{ORDERS}/subscriptions") == 403)
    assert entries(resources)["token"] == found["token"]


def test_a_service_account_proves_the_role_without_any_secret(resources: Resources) -> None:
    for name in ("billing", "another"):
        resources.cluster.kubectl("create", "serviceaccount", name, "-n", resources.namespace)
    proof = [{"serviceAccount": {"name": "billing"}}]
    limits = {"connections": 5, "publishRate": {"messages": 100}}
    spec = {"clusterRef": {"name": "main"}, "authentication": proof, "permissions": CONSUME, "limits": limits}
    resources.apply("User", "billing", spec)
    resources.wait_ready("User", "billing")
    assert not resources.status("User", "billing").get("notInEffect")
    path = f"{ORDERS}/subscriptions"
    token = token_of(resources, "billing")
    resources.wait("the service account has the role", lambda: may(resources, token, path) == 200)
    assert may(resources, token_of(resources, "another"), path) == 403
    assert may(resources, token_of(resources, "billing", audience="somebody"), path) == 401
    assert may(resources, token, "/admin/v2/tenants") == 403
    resources.wait("it was seen", lambda: resources.status("User", "billing").get("lastSeen") is not None, within_s=150)
    resources.wait("a denial", lambda: resources.status("User", "billing").get("deniedLastHour", 0) > 0, within_s=150)
    # What the User does not state any more is gone.
    resources.apply("User", "billing", {**spec, "authentication": []})
    resources.wait("the service account has lost the role", lambda: may(resources, token, path) == 403)


def token_of(resources: Resources, account: str, audience: str = "heliograph") -> str:
    """Return a token of a service account, as the kubelet has them mounted."""
    command = ("create", "token", account, "-n", resources.namespace, "--audience", audience, "--duration", "1h")
    return resources.cluster.kubectl(*command).strip()


def test_a_secret_that_somebody_deleted_is_made_again(resources: Resources) -> None:
    resources.apply(
        "User", "billing", {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": CONSUME}
    )
    resources.wait_ready("User", "billing")
    token = entries(resources)["token"]
    resources.cluster.kubectl("delete", "secret", "billing-token", "-n", resources.namespace)
    # The operator reads it once a minute.
    resources.wait("there is another token", lambda: entries(resources)["token"] != token, within_s=150)


def test_a_secret_of_somebody_else_stays_as_it_is(resources: Resources) -> None:
    metadata = {"name": "billing-token", "namespace": resources.namespace}
    resources.cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": "mine"}}
    )
    resources.apply(
        "User", "billing", {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": CONSUME}
    )
    resources.wait_reason("User", "billing", "Conflict")
    assert entries(resources) == {"token": "mine"}


def test_a_deleted_user_leaves_no_secret_and_no_rights(resources: Resources) -> None:
    resources.apply(
        "User", "billing", {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": CONSUME}
    )
    resources.wait_ready("User", "billing")
    token = entries(resources)["token"]
    resources.delete("User", "billing")
    resources.wait_gone("User", "billing")
    assert may(resources, token, f"{ORDERS}/subscriptions") == 403
    names = ("get", "secret", "billing-token", "-n", resources.namespace, "--ignore-not-found", "-o", "name")
    resources.wait("its Secret is gone", lambda: not resources.cluster.kubectl(*names))


def test_permissions_of_a_namespace_leave_those_of_users_alone(resources: Resources) -> None:
    spec = {"clusterRef": {"name": "main"}, "authentication": TOKEN, "permissions": CONSUME}
    resources.apply("User", "billing", spec)
    resources.wait_ready("User", "billing")
    token, tenant = entries(resources)["token"], {"tenantRef": {"name": "shop"}}
    etl = {"role": "etl@example.org", "actions": ["consume"], "subscriptions": ["etl"]}
    with pytest.raises(ClusterCommandError, match="are for those that consume"):
        resources.apply("Namespace", "payments", {**tenant, "permissions": [{**etl, "actions": ["produce"]}]})
    resources.apply("Namespace", "payments", {**tenant, "permissions": [etl]})
    subscription = f"{ORDERS}/subscription/etl"
    resources.wait(
        "the subscription is for the role that the Namespace names",
        lambda: may(resources, token, subscription, "PUT") == 403,
    )
    assert may(resources, token, f"{ORDERS}/subscriptions") == 200
    both = [etl, {"role": f"{resources.namespace}/billing", "actions": ["admin"]}]
    resources.apply("Namespace", "payments", {**tenant, "permissions": both})
    resources.wait_reason("Namespace", "payments", "RoleOwned")
    assert may(resources, token, f"{ORDERS}/permissions") == 403
    resources.apply("Namespace", "payments", {**tenant, "permissions": []})
    resources.wait("nobody names it any more", lambda: may(resources, token, subscription, "PUT") in (204, 409))
