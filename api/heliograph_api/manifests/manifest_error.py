"""The error of manifests, apart from their reader: the models of resources, which that needs, take long to import."""

from __future__ import annotations

from collections.abc import Sequence


class ManifestError(Exception):
    """Everything that is wrong, one line each in ``problems`` and in the message."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)
