"""Collects what a person needs who helps from outside: resources, their objects, events and logs, without Secrets."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from heliograph_operator.objects.kinds import GROUP, KINDS, key_of

from .kubectl import Kubectl, KubectlFailed

#: The objects that the operator makes, and its own.
_SELECTOR: Final = "app.kubernetes.io/name in (heliograph,heliograph-archive,heliograph-backup)"
#: The environment variables whose values may be read; those of others may be secret.
_OURS: Final = "HELIOGRAPH_"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
#: The annotation of a StatefulSet with its pod template (JSON).
_TEMPLATE: Final = f"{GROUP}/template"
_REMOVED: Final = "(removed)"
_KINDS: Final = "statefulsets,deployments,pods,services,persistentvolumeclaims,configmaps,networkpolicies,cronjobs,jobs"
#: The lines of each container's log.
_LINES: Final = 5000


def write_bundle(kubectl: Kubectl, path: Path, progress: Callable[[str], None]) -> int:
    """Write a compressed archive. Returns the number of files in it that only have an error of ``kubectl``.

    Raises :class:`OSError` if it cannot be written; a file that exists already is not replaced.
    """
    failed = 0
    with path.open("xb") as output, tarfile.open(fileobj=output, mode="w:gz") as archive:
        for name, text in _files(kubectl):
            progress(name)
            if isinstance(text, KubectlFailed):
                failed += 1
            content = str(text).encode()
            entry = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return failed


def _files(kubectl: Kubectl) -> Iterator[tuple[str, str | KubectlFailed]]:
    yield "version.json", _asked(kubectl, "version", "-o", "json")
    for kind in KINDS.values():
        yield f"{kind.plural}.json", _objects(kubectl, f"{kind.plural}.{GROUP}")
    yield "objects.json", _objects(kubectl, _KINDS, "-l", _SELECTOR)
    yield "events.txt", _asked(kubectl, "get", "events", "--sort-by=.metadata.creationTimestamp", "-o", "wide")
    pods = _asked(kubectl, "get", "pods", "-l", _SELECTOR, "-o", "json")
    if isinstance(pods, KubectlFailed):
        yield "pods.txt", pods
        return
    for pod in json.loads(pods)["items"]:
        yield from _logs(kubectl, pod)


def _logs(kubectl: Kubectl, pod: dict[str, Any]) -> Iterator[tuple[str, str | KubectlFailed]]:
    _, namespace, name = key_of(pod)
    here = Kubectl(kubectl.options, ("-n", namespace))
    for container in pod["spec"]["containers"]:
        about = ("logs", name, "-c", container["name"], f"--tail={_LINES}")
        yield f"logs/{namespace}/{name}/{container['name']}.log", _asked(here, *about)
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        if any(each["name"] == container["name"] and each.get("restartCount") for each in statuses):
            yield f"logs/{namespace}/{name}/{container['name']}.previous.log", _asked(here, *about, "--previous")


def _objects(kubectl: Kubectl, *arguments: str) -> str | KubectlFailed:
    found = _asked(kubectl, "get", *arguments, "-o", "json")
    return found if isinstance(found, KubectlFailed) else json.dumps(redacted(json.loads(found)), indent=1)


def redacted(value: Any) -> Any:
    """Return a part of an object without the values of environment variables that are not the project's own."""
    if isinstance(value, list):
        return [redacted(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: redacted(each) for key, each in value.items() if key != _LAST_APPLIED}
    variables = kept.get("env")
    if isinstance(variables, list):
        kept["env"] = [_without_value(each) for each in variables]
    if _TEMPLATE in kept:
        kept[_TEMPLATE] = _redacted_json(kept[_TEMPLATE])
    return kept


def _redacted_json(text: Any) -> str:
    try:
        return json.dumps(redacted(json.loads(text)))
    except (TypeError, ValueError):
        # Somebody else wrote it: nobody knows what it has.
        return _REMOVED


def _without_value(variable: Any) -> Any:
    if not isinstance(variable, dict) or "value" not in variable or str(variable.get("name")).startswith(_OURS):
        return variable
    return variable | {"value": _REMOVED}


def _asked(kubectl: Kubectl, *arguments: str) -> str | KubectlFailed:
    try:
        return kubectl.run(*arguments)
    except KubectlFailed as error:
        return error
