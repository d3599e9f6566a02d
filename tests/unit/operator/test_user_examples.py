"""The examples of Users, and of BrokerClusters in the guide: each is valid and in effect."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.manifests.documents import read_yaml
from heliograph_api.resources.model import KINDS, BrokerCluster, User
from heliograph_operator.decide.cluster_objects import manifests
from heliograph_operator.decide.stateful_set import Site, stated_settings
from heliograph_operator.objects.kinds import GROUP
from heliograph_operator.objects.user_identities import not_in_effect

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / "charts" / "examples" / "users"
USERS = {
    "service-account.yaml": "service_account",
    "token.yaml": "token",
    "certificate.yaml": "certificate",
    "oidc.yaml": "oidc",
}


def documents(name: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a file by their kinds."""
    found: dict[str, dict[str, Any]] = {}
    for each in read_yaml((FOLDER / name).read_text(encoding="utf-8")):
        assert isinstance(each, dict)
        found[each["kind"]] = {**each, "metadata": {**each["metadata"], "namespace": "team"}}
        if each["apiVersion"].startswith(GROUP):
            assert "namespace" not in each["metadata"], "the Kubernetes namespace is that of kubectl"
            KINDS[each["kind"]].model_validate(each)
    return found


CLUSTER = documents("brokercluster.yaml")["BrokerCluster"]


def test_there_is_an_example_of_each_way_to_prove_a_role() -> None:
    assert {each.name for each in FOLDER.iterdir()} == {*USERS, "brokercluster.yaml"}
    guide = (PROJECT / "docs" / "security-kubernetes.md").read_text(encoding="utf-8")
    for name in (*USERS, "brokercluster.yaml"):
        assert f"../charts/examples/users/{name}" in guide


@pytest.mark.parametrize(("name", "way"), USERS.items())
def test_an_example_is_in_effect_on_its_brokercluster(name: str, way: str) -> None:
    body = documents(name)["User"]
    user = User.model_validate({**body, "metadata": {"name": body["metadata"]["name"]}})
    assert user.spec.cluster_ref.name == CLUSTER["metadata"]["name"]
    assert user.spec.permissions
    assert all(getattr(each, way) is not None for each in user.spec.authentication)
    assert not_in_effect(body, CLUSTER, knows_roles=True) == []


def test_brokers_start_with_the_settings_of_the_brokercluster() -> None:
    cluster = BrokerCluster.model_validate({**CLUSTER, "metadata": {"name": "main"}})
    settings = stated_settings(cluster)
    BrokerConfig(**settings).check_together(given_by_others=True)
    assert settings["auth"] == "token,oidc,tls"


def test_the_pod_of_the_service_account_has_a_token_for_the_brokers() -> None:
    found = documents("service-account.yaml")
    pod, (proof,) = found["Pod"]["spec"], found["User"]["spec"]["authentication"]
    name = found["ServiceAccount"]["metadata"]["name"]
    assert pod["serviceAccountName"] == proof["serviceAccount"]["name"] == name
    (volume,) = pod["volumes"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == CLUSTER["spec"]["authentication"]["serviceAccounts"]["audience"]
    (container,) = pod["containers"]
    (mount,) = container["volumeMounts"]
    files = [each["value"] for each in container["env"] if each["name"] == "HELIOGRAPH_TOKEN_FILE"]
    assert files == [f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"]


def of_the_guide(heading: str) -> tuple[BrokerConfig, list[Path]]:
    """Return the settings of the brokers of an example in the guide, and where their pods have files."""
    guide = (PROJECT / "docs" / "security-kubernetes.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        "```yaml\n(.*?)```", guide.partition(f"\n### {heading}\n")[2].partition("\n##")[0], re.DOTALL
    )
    (body,) = read_yaml(example)
    assert isinstance(body, dict)
    cluster = BrokerCluster.model_validate(body)
    made = {each["kind"]: each for each in manifests(cluster, _with_uid(body), Site("broker"))}
    pod = made["StatefulSet"]["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    volumes = {each["name"] for each in pod["volumes"]} | {"data"}
    assert {each["name"] for each in broker["volumeMounts"]} == volumes
    config = BrokerConfig.from_environment(made["ConfigMap"]["data"])
    return config, [Path(each["mountPath"]) for each in broker["volumeMounts"]]


def _with_uid(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "uid": "uid-1"}}


def test_the_pods_of_the_guide_have_the_file_of_users() -> None:
    config, mounted = of_the_guide("Files of other methods")
    assert config.auth_methods() == ("token", "basic")
    assert Path(config.basic_file).parent in mounted


def test_the_pods_of_the_guide_have_the_authorities_of_their_issuer() -> None:
    config, mounted = of_the_guide("An issuer with a private authority on Kubernetes")
    assert config.oidc_issuer == "https://id.internal"
    assert Path(config.oidc_ca).parent in mounted
