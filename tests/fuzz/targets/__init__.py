"""The targets by name, each a module with ``run`` and ``seeds``: code that reads what others write."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

#: The limit of an input (bytes) of each target.
_TARGETS = {
    "frames": 2048,
    "commands": 2048,
    "secured": 2048,
    "metadata": 2048,
    "message_ids": 512,
    "names": 300,
    "tokens": 1024,
    "manifests": 2048,
    "json_bodies": 1024,
    "rest": 1024,
    "decoder": 1024,
    "broker_settings": 512,
    "stored_files": 2048,
}
NAMES = tuple(_TARGETS)


def load(name: str) -> Target:
    """Return a target. Raises :class:`ImportError` if its modules are not installed, and :class:`KeyError`."""
    limit = _TARGETS[name]
    module = import_module(f"tests.fuzz.targets.{name}")
    return Target(module.run, module.seeds, limit, getattr(module, "WORDS", ()))
