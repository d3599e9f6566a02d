"""The types of schemas by the names that Pulsar's REST API gives them."""

from __future__ import annotations

import re
from typing import Final

from heliograph_api.protocol import wire_pb2 as wire

#: Types that are not stored by REST: no schema, and whichever the topic has.
_OF_CLIENTS: Final = frozenset({"None", "AutoConsume"})
#: The boundary of two words in the name of a wire type.
_WORD: Final = re.compile("(?<=[a-z])(?=[A-Z])")


def type_name(value: int) -> str:
    """Return the REST name of a wire type: KeyValue is KEY_VALUE there, and Bool is BOOLEAN."""
    name = wire.Schema.Type.Name(value)  # type: ignore[arg-type]
    return "BOOLEAN" if name == "Bool" else _WORD.sub("_", name).upper()


#: The wire types that can be stored, by their REST names.
STORED_TYPES: Final[dict[str, int]] = {
    type_name(value): value for key, value in wire.Schema.Type.items() if key not in _OF_CLIENTS
}
