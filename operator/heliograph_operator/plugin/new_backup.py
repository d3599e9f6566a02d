"""Creates a Backup for ``kubectl heliograph backup``, and follows it to its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from heliograph_operator.decide.backup_state import FAILED, is_over, phase_of
from heliograph_operator.objects.conditions import READY, condition
from heliograph_operator.objects.kinds import API_VERSION, BACKUP, SCHEDULED_BACKUP, full_name

from .kubectl import Kubectl

#: Time (s) between two looks at a Backup.
_POLL_S: Final = 2.0


class NotEnded(Exception):
    """A Backup has not ended in time."""


def create(ask: Kubectl, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Create a Backup and return it. Raises :class:`.kubectl.KubectlFailed`."""
    manifest = {"apiVersion": API_VERSION, "kind": BACKUP.name, "metadata": {"name": name}, "spec": spec}
    made: dict[str, Any] = json.loads(ask.run("create", "-f", "-", "-o", "json", given=json.dumps(manifest)))
    return made


def template(ask: Kubectl, schedule: str) -> dict[str, Any]:
    """Return the spec that a ScheduledBackup gives its Backups. Raises :class:`.kubectl.KubectlFailed`."""
    (found,) = ask.objects(full_name(SCHEDULED_BACKUP.name), schedule)
    return dict(found["spec"]["template"])


def follow(ask: Kubectl, name: str, within_s: float, show: Callable[[str], None]) -> bool:
    """Show each change of a Backup until it has ended; return whether it succeeded.

    Raises :class:`NotEnded` and :class:`.kubectl.KubectlFailed`.
    """
    deadline = time.monotonic() + within_s
    shown = ""
    while True:
        (body,) = ask.objects(full_name(BACKUP.name), name)
        message = condition(body.get("status") or {}, READY).get("message", "the operator has not reported yet")
        line = f"{phase_of(body) or 'Waiting'}: {message}"
        if line != shown:
            shown = line
            show(line)
        if is_over(body):
            return phase_of(body) != FAILED
        if time.monotonic() >= deadline:
            raise NotEnded(f"Backup {name} has not ended within {within_s:.0f} s; it goes on")
        time.sleep(_POLL_S)
