"""Digests by which a status names schemas."""

from __future__ import annotations

import hashlib


def schema_digest(type_name: str, definition: bytes) -> str:
    """Return what tells a schema, by its type and definition, from others: ``AVRO 1f3c…``."""
    return f"{type_name} {hashlib.sha256(definition).hexdigest()[:16]}"
