"""Objects that a resource does without any more are deleted if they are its own."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.act.object_apply import ObjectRefused, remove_all
from heliograph_operator.decide.cluster_objects import NETWORK_POLICY
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import Key, Kind

from .api_server import ApiServer, resource_of
from .bodies import body

CLUSTER = Key("BrokerCluster", "team", "main")
POLICY = Key("NetworkPolicy", "team", "main")


class Server(ApiServer):
    """An API server that deletes, unless it forbids that."""

    forbids = False

    async def delete(self, kind: Kind, namespace: str, name: str, *, propagation: str = "Background") -> None:
        if self.forbids:
            raise KubeRefused(403, "Forbidden", "no")
        del self.objects[Key(kind.name, namespace, name)]


def server_with(metadata: dict[str, Any]) -> Server:
    server = Server(body("BrokerCluster", "main", {}, generation=1))
    policy = {
        "kind": "NetworkPolicy",
        "metadata": {"name": "main", "namespace": "team", "uid": "p", "resourceVersion": "1", **metadata},
    }
    server.objects[POLICY] = policy
    return server


async def removed(server: Server) -> list[str]:
    context = server.context()
    return await remove_all(context, resource_of(context, CLUSTER), [(NETWORK_POLICY, "main")])


async def test_an_object_of_the_resource_is_deleted_once() -> None:
    server = server_with({})
    uid = server.objects[CLUSTER]["metadata"]["uid"]
    server = server_with({"ownerReferences": [{"uid": uid, "controller": True}]})
    assert await removed(server) == ["removed NetworkPolicy main"]
    assert POLICY not in server.objects
    assert await removed(server) == []


@pytest.mark.parametrize("metadata", [{}, {"ownerReferences": [{"uid": "another", "controller": True}]}])
async def test_an_object_of_somebody_else_stays(metadata: dict[str, Any]) -> None:
    server = server_with(metadata)
    assert await removed(server) == []
    assert POLICY in server.objects


async def test_a_deletion_that_is_forbidden_is_said() -> None:
    server = server_with({"labels": {"app.kubernetes.io/managed-by": "heliograph-operator"}})
    server.forbids = True
    with pytest.raises(ObjectRefused, match="NetworkPolicy main: "):
        await removed(server)
