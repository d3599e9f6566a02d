"""The default StorageClass of scripts/cluster: a directory of the node for every claim, on demand, that can grow.

Usage: ``volumes.py API-HOST PKI-DIRECTORY DIRECTORY``. Sizes are promised, not enforced.
Once a second it lists claims and volumes and does what is due: a volume for a claim that a pod waits for, the larger
size a claim asks for, and the end of a volume whose claim is gone.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import sys
import time
from pathlib import Path
from typing import Any

PROVISIONER = "heliograph.dev/directory"
#: Set by the scheduler on a claim whose first pod it has placed.
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
VOLUMES = "/api/v1/persistentvolumes"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"

_SUFFIXES = {"": 1, "m": 1e-3, "k": 1e3} | {
    letter + binary: (1024.0 if binary else 1000.0) ** power
    for power, letter in enumerate("KMGTPE", start=1)
    for binary in ("", "i")
}


def quantity(text: str) -> float:
    """Return the bytes of a Kubernetes quantity such as ``10Gi``. Raises :class:`ValueError` for anything else.

    Raises :class:`ValueError` for anything else.
    """
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", text)
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {text!r}")
    return float(match[1]) * _SUFFIXES[match[2]]


class RefusedError(Exception):
    """The API server's refusal, in its words."""


class Api:
    """The cluster's API server, by one connection; every call raises :class:`OSError` if it is not answered."""

    def __init__(self, host: str, pki: Path) -> None:
        token = (pki / "tokens.csv").read_text().partition(",")[0]
        self._headers = {"Authorization": f"Bearer {token}"}
        tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._connection = http.client.HTTPSConnection(host, 6443, timeout=30, context=tls)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer, of any 2xx status. Raises :class:`RefusedError` for another."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            text = None if body is None else json.dumps(body)
            self._connection.request(method, path, text, self._headers | {"Content-Type": kind})
            response = self._connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error}") from error
        except OSError:
            self._connection.close()
            raise
        if response.status >= 300:
            raise RefusedError(f"{method} {path}: {answer.get('message')}")
        return answer

    def items(self, path: str) -> list[dict[str, Any]]:
        """Return the items of a list."""
        listed: list[dict[str, Any]] = self.call("GET", path)["items"]
        return listed


def volume_for(claim: dict[str, Any], classes: dict[str, dict[str, Any]], directory: Path) -> dict[str, Any]:
    """Return the volume to create for a claim; it may hold any data the pod's ``fsGroup`` lets it write."""
    metadata, spec = claim["metadata"], claim["spec"]
    name = f"pvc-{metadata['uid']}"
    node = metadata["annotations"][SELECTED_NODE]
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": {
            "accessModes": spec["accessModes"],
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                **{key: metadata[key] for key in ("namespace", "name", "uid")},
            },
            "local": {"path": str(directory / name)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}},
            "persistentVolumeReclaimPolicy": classes[spec["storageClassName"]].get("reclaimPolicy", "Delete"),
            "storageClassName": spec["storageClassName"],
            "volumeMode": "Filesystem",
        },
    }


def grow(api: Api, claim: dict[str, Any], size: str) -> None:
    """Tells the volume first, then the claim, that there is more room; a directory has it already."""
    capacity = {"capacity": {"storage": size}}
    metadata = claim["metadata"]
    api.call("PATCH", f"{VOLUMES}/{claim['spec']['volumeName']}", {"spec": capacity})
    path = f"/api/v1/namespaces/{metadata['namespace']}/persistentvolumeclaims/{metadata['name']}/status"
    api.call("PATCH", path, {"status": capacity | {"conditions": []}})


def reconcile(api: Api, directory: Path) -> None:
    """Reconcile everything once."""
    classes = {each["metadata"]["name"]: each for each in api.items(CLASSES) if each["provisioner"] == PROVISIONER}
    volumes = {each["metadata"]["name"]: each for each in api.items(VOLUMES)}
    for claim in api.items("/api/v1/persistentvolumeclaims"):
        metadata, spec = claim["metadata"], claim["spec"]
        if spec.get("storageClassName") not in classes or "deletionTimestamp" in metadata:
            continue
        wanted = spec["resources"]["requests"]["storage"]
        if claim["status"]["phase"] == "Bound":
            if quantity(wanted) > quantity(claim["status"]["capacity"]["storage"]):
                grow(api, claim, wanted)
        elif SELECTED_NODE in metadata.get("annotations", {}) and f"pvc-{metadata['uid']}" not in volumes:
            volume = volume_for(claim, classes, directory)
            Path(volume["spec"]["local"]["path"]).mkdir(parents=True, exist_ok=True)
            api.call("POST", VOLUMES, volume)
    for name, volume in volumes.items():
        ours = volume["metadata"].get("annotations", {}).get(PROVISIONED_BY) == PROVISIONER
        policy = volume["spec"]["persistentVolumeReclaimPolicy"]
        if ours and volume["status"].get("phase") == "Released" and policy == "Delete":
            shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
            api.call("DELETE", f"{VOLUMES}/{name}")


def main() -> None:
    """Reconcile once a second until the process is ended."""
    directory = Path(sys.argv[3])
    directory.mkdir(parents=True, exist_ok=True)
    api = Api(sys.argv[1], Path(sys.argv[2]))
    while True:
        try:
            reconcile(api, directory)
        except (OSError, RefusedError) as error:
            # Whatever changed or vanished meanwhile is seen as it is in the next round.
            print(f"again in a second: {error}", flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
