"""The logs of the pods in a Kubernetes namespace, which have none of the secrets that the operator made there."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, Final

from .cluster import Cluster, ClusterCommandError
from .secret_watch import WATCH, SecretWatch

_PRIVATE_KEY: Final = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_TOKEN: Final = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")
#: Errors of kubectl for containers without a log: they have not started, or their pod was deleted meanwhile.
_NO_LOG: Final = re.compile(r"is waiting to start|NotFound|not found|PodInitializing|ContainerCreating")


def secrets_in_logs(cluster: Cluster, namespace: str, watch: SecretWatch = WATCH) -> list[str]:
    """Return a line for each container whose log has secrets; nothing if all is well.

    From now on, the private keys and tokens in the namespace's Secrets are looked for in all other logs, too.
    """
    found = cluster.kubectl_json("get", "secrets,pods", "-n", namespace)["items"]
    for each in found:
        if each["kind"] == "Secret":
            for entry, secret in _secrets(each):
                watch.secret(f"{entry} of Secret {each['metadata']['name']}", secret)
    lines = []
    for pod in (each for each in found if each["kind"] == "Pod"):
        for container, *previous in _containers(pod):
            name = pod["metadata"]["name"]
            command = ("logs", name, "-c", container, *previous, "-n", namespace, "--tail=-1")
            try:
                names = watch.found_in(cluster.kubectl(*command))
            except ClusterCommandError as error:
                if not _NO_LOG.search(str(error)):
                    raise
                continue
            if names:
                lines.append(f"{container} of pod {name}: {', '.join(names)}")
    return lines


def _secrets(secret: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the private keys and tokens in a Secret, each with its entry."""
    for entry, encoded in (secret.get("data") or {}).items():
        text = base64.b64decode(encoded).decode(errors="replace")
        # Keys are lines, or a text in JSON.
        for key in _PRIVATE_KEY.finditer(text.replace("\\n", "\n")):
            yield entry, key[0]
        if token := _TOKEN.fullmatch(text.strip()):
            yield entry, token[0]


def _containers(pod: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the containers of a pod that have started, and those that were started again with what asks for both."""
    status = pod.get("status", {})
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        if "waiting" not in each.get("state", {}):
            yield (each["name"],)
        if each["restartCount"]:
            yield each["name"], "--previous"
