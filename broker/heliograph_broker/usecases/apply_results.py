"""The results of applied resources. Apart from :mod:`.apply`, which takes long to import."""

from __future__ import annotations

import msgspec

CREATED = "created"
CONFIGURED = "configured"
UNCHANGED = "unchanged"


class Applied(msgspec.Struct, frozen=True):
    """The result for one resource; ``action`` is created, configured or unchanged.

    ``note`` says what of it is not this broker's to do.
    """

    kind: str
    name: str
    action: str
    note: str = ""
