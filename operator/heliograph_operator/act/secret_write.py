"""Reads and writes Secrets one by one. A write is of the version that was read, so it never undoes another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heliograph_operator.decide.token_secrets import SECRET, encoded
from heliograph_operator.kube.client import KubeRefused
from heliograph_operator.objects.kinds import Body

from .controller import Context
from .object_apply import ObjectRefused, belongs_to, check_owner, refusal_reason
from .resource import Resource

#: What helps an operator that may not use Secrets.
_VALID: Final = (
    "valid: authentication.enabled in the operator's chart, with this Kubernetes namespace in authentication.namespaces"
    " (for TLS tls.enabled), and with this name if authentication.secrets (tls.secrets) has any"
)

#: The uid of no object.
_NOBODY: Final = "00000000-0000-0000-0000-000000000000"


async def find_secret(context: Context, resource: Resource, name: str) -> Body | None:
    """Return a Secret of the resource. Raises :class:`ObjectRefused` for one of another owner, or if forbidden."""
    found = await read_secret(context, resource.key.namespace, name)
    if found is not None:
        check_owner(resource, SECRET, found)
    return found


async def read_secret(context: Context, namespace: str, name: str) -> Body | None:
    """Return a Secret of any owner. Raises :class:`ObjectRefused` if forbidden."""
    try:
        return await context.kube.find(SECRET, namespace, name)
    except KubeRefused as error:
        raise _refused(name, error) from error


async def write_secret(
    context: Context,
    resource: Resource,
    metadata: Mapping[str, Any],
    entries: Mapping[str, str],
    found: Body | None,
    kind: str = "Opaque",
) -> bool:
    """Create a Secret, or replace ``found``, unless it is as stated; return whether it was written.

    Raises :class:`ObjectRefused`, or :class:`.client.KubeRefused` 409 if somebody else wrote it meanwhile.
    """
    name, data = str(metadata["name"]), encoded(entries)
    wanted: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": SECRET.name,
        "type": kind,
        "metadata": dict(metadata),
        "data": data,
    }
    try:
        if found is None:
            await context.kube.create(SECRET, wanted)
            return True
        before = found["metadata"]
        labels = {**(before.get("labels") or {}), **metadata.get("labels", {})}
        owners = metadata.get("ownerReferences")
        if (found.get("data") or {}) == data and before.get("labels") == labels and _owns(before, owners):
            return False
        wanted["metadata"] = {**before, "labels": labels, "ownerReferences": owners}
        # It cannot be changed.
        wanted["type"] = found.get("type", kind)
        await context.kube.replace(SECRET, wanted)
        return True
    except KubeRefused as error:
        if error.status == 409:
            raise
        raise _refused(name, error) from error


async def orphan_secret(context: Context, resource: Resource, name: str) -> None:
    """Leave a Secret of the resource without an owner, so that it is not deleted with it; one of another owner stays.

    Raises :class:`ObjectRefused` if forbidden.
    """
    found = await read_secret(context, resource.key.namespace, name)
    if found is None or not belongs_to(found, resource.uid) or not found["metadata"].get("ownerReferences"):
        return
    metadata = {key: value for key, value in found["metadata"].items() if key != "ownerReferences"}
    try:
        await context.kube.replace(SECRET, {**found, "metadata": metadata})
    except KubeRefused as error:
        if error.status != 403:
            raise
        raise _refused(name, error) from error


async def discard_secret(context: Context, resource: Resource, name: str) -> bool:
    """Empty a Secret of the resource and let Kubernetes delete it; return False if there is none of its own.

    Its owner becomes one that does not exist, so the garbage collector deletes it: the operator has no right to delete
    Secrets. Raises :class:`ObjectRefused`, or :class:`.client.KubeRefused` 409 if somebody else wrote it meanwhile.
    """
    found = await read_secret(context, resource.key.namespace, name)
    if found is None or not belongs_to(found, resource.uid, orphans=False):
        return False
    owners = [{**each, "uid": _NOBODY} for each in found["metadata"]["ownerReferences"]]
    try:
        await context.kube.replace(
            SECRET, {**found, "metadata": {**found["metadata"], "ownerReferences": owners}, "data": {}}
        )
    except KubeRefused as error:
        if error.status == 409:
            raise
        raise _refused(name, error) from error
    return True


def _owns(metadata: Mapping[str, Any], owners: Any) -> bool:
    found = metadata.get("ownerReferences") or []
    return {each.get("uid") for each in found} >= {each.get("uid") for each in owners or []}


def _refused(name: str, error: KubeRefused) -> ObjectRefused:
    help_text = f"; {_VALID}" if error.status == 403 else ""
    return ObjectRefused(refusal_reason(error), f"Secret {name}: {error}{help_text}")
