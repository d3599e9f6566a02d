"""What becomes of a resource that is applied. Apart from :mod:`.apply`, which takes long to import."""

from __future__ import annotations

import msgspec

CREATED = "created"
CONFIGURED = "configured"
UNCHANGED = "unchanged"


class Applied(msgspec.Struct, frozen=True):
    """What became of one resource; ``action`` is created, configured or unchanged.

    ``note`` says what of it is not this broker's to do.
    """

    kind: str
    name: str
    action: str
    note: str = ""
