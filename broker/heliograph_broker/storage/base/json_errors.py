"""The errors of decoding bytes that are no JSON document of the type."""

from __future__ import annotations

from typing import Final

import msgspec

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Another type or not JSON at all; texts that are not UTF-8; nested too deeply."""
