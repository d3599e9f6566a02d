"""The targets by name, each a module with ``run`` and ``seeds``: code that reads what others write."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

#: The limit of an input (bytes) of each target, and the inputs of its short run, some seconds on a free core.
_TARGETS = {
    "frames": (2048, 5_000),
    "commands": (2048, 800),
    "secured": (2048, 800),
    "metadata": (2048, 20_000),
    "message_ids": (512, 20_000),
    "names": (300, 40_000),
    "tokens": (1024, 10_000),
    "manifests": (2048, 5_000),
    "json_bodies": (1024, 40_000),
    "rest": (1024, 2_500),
    "decoder": (1024, 5_000),
    "broker_settings": (512, 10_000),
    "stored_files": (2048, 5_000),
}
NAMES = tuple(_TARGETS)


def load(name: str) -> Target:
    """Return a target. Raises :class:`ImportError` if its modules are not installed, and :class:`KeyError`."""
    limit, _ = _TARGETS[name]
    module = import_module(f"tests.fuzz.targets.{name}")
    return Target(module.run, module.seeds, limit, getattr(module, "WORDS", ()))


def short_run(name: str) -> int:
    """Return how many inputs a target gets in continuous integration, its first ones included."""
    return _TARGETS[name][1]
