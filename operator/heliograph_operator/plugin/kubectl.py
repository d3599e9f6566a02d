"""Asks the API server by ``kubectl``, so that its contexts, users and credential helpers are those of the person."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from heliograph_operator.objects.kinds import GROUP, KINDS, key_of

_TIMEOUT_S: Final = 60


class KubectlFailed(Exception):
    """``kubectl`` failed; the text is what it complained of."""


@dataclass(frozen=True)
class Kubectl:
    """``kubectl`` with the options by which it finds a cluster, and the Kubernetes namespace that is meant."""

    options: tuple[str, ...] = ()
    #: ``-n NAME``, ``--all-namespaces``, or nothing: that of the context.
    scope: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of a request in the namespace that is meant."""
        return ["kubectl", *self.options, *arguments, *self.scope]

    def run(self, *arguments: str, given: str = "") -> str:
        """Return what ``kubectl`` prints; ``given`` is its input. Raises :class:`KubectlFailed`."""
        try:
            done = subprocess.run(
                self.command(*arguments),
                input=given or None,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except FileNotFoundError:
            raise KubectlFailed("there is no kubectl on the PATH") from None
        except subprocess.TimeoutExpired:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: no answer within {_TIMEOUT_S} s") from None
        if done.returncode:
            raise KubectlFailed(done.stderr.strip() or f"kubectl ended with {done.returncode}")
        return done.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the objects of ``kubectl get ARGUMENTS``. Raises :class:`KubectlFailed`."""
        found = json.loads(self.run("get", *arguments, "-o", "json"))
        return list(found["items"]) if found["kind"] == "List" else [found]

    def resources(self) -> list[dict[str, Any]]:
        """Return all resources of the project's kinds, parents first. Raises :class:`KubectlFailed`."""
        found = self.objects(",".join(f"{kind.plural}.{GROUP}" for kind in KINDS.values()))
        order = list(KINDS)
        return sorted(found, key=lambda body: (order.index(body["kind"]), key_of(body)))


def kubectl(context: str, kubeconfig: str, scope: Sequence[str]) -> Kubectl:
    """Return kubectl for a context and a file, each empty for its own default, and a scope."""
    named = (("--context", context), ("--kubeconfig", kubeconfig))
    return Kubectl(tuple(part for option, value in named if value for part in (option, value)), tuple(scope))
