"""What tells a schema from others, short enough for a status."""

from __future__ import annotations

import hashlib


def schema_digest(type_name: str, definition: bytes) -> str:
    """Return what tells a schema, by its type and definition, from others: ``AVRO 1f3c…``."""
    return f"{type_name} {hashlib.sha256(definition).hexdigest()[:16]}"
