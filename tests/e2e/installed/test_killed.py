"""A broker that is killed comes back with what it had confirmed, and its clients go on by themselves."""

from __future__ import annotations

from tests.e2e.waiting import uid, wait_ready, wait_replaced
from tests.support.cluster_fixtures import Images

from .conftest import Installation

TOPIC = "persistent://shop/payments/killed"

#: A pod that sees the node's processes ends those of one container at once, as the kernel does when memory is short.
KILLER = """
apiVersion: v1
kind: Pod
metadata: {name: killer}
spec:
  restartPolicy: Never
  hostPID: true
  containers:
    - name: killer
      image: IMAGE
      imagePullPolicy: Never
      securityContext: {runAsUser: 0}
      command: [python, -c]
      args:
        - |
          import os, pathlib
          for process in pathlib.Path("/proc").glob("[0-9]*"):
              if "CONTAINER" in (process / "cgroup").read_text():
                  os.kill(int(process.name), 9)
                  print("killed", process.name)
"""


def test_a_killed_broker_comes_back_with_everything_and_connected_clients_go_on(
    installation: Installation, images: Images
) -> None:
    cluster, namespace = installation.cluster, installation.namespace

    def container() -> dict[str, str]:
        pod = cluster.kubectl_json("get", "pod", "default-0", "-n", namespace)
        (status,) = pod["status"]["containerStatuses"]
        return {"id": status["containerID"].rpartition("/")[2], "restarts": status["restartCount"]}

    with installation.client.load(TOPIC, "reader") as load:
        before = container()
        manifest = KILLER.replace("IMAGE", images["client"]).replace("CONTAINER", before["id"])
        cluster.apply(manifest, namespace=namespace)
        cluster.wait_for(
            "the container is a new one",
            lambda: container()["restarts"] > before["restarts"],
            within_s=180,
            namespace=namespace,
        )
        assert "killed" in cluster.kubectl("logs", "killer", "-n", namespace)
        load.goes_on()

        pod = uid(cluster, namespace, "pod/default-0")
        installation.kubectl("delete", "pod", "default-0", "--grace-period=0", "--force")
        wait_replaced(cluster, namespace, "default-0", pod)
        load.goes_on()
        load.assert_nothing_lost()
    wait_ready(cluster, namespace, "brokercluster/default")
