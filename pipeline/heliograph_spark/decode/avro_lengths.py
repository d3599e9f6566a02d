"""Finds arrays in Avro whose items take no bytes: a short value may say that it has any number of them."""

from __future__ import annotations

from typing import Any


class _Items:
    """The types of one definition, by their names, and the fields with such an array."""

    def __init__(self) -> None:
        self.found: str | None = None
        self._empty: dict[str, bool] = {}

    def is_empty(self, avro: Any, where: str) -> bool:
        """Return whether a value of a type takes no bytes; note the field of an array of such."""
        if isinstance(avro, str):
            return avro == "null" or self._empty.get(avro.rpartition(".")[2], False)
        if isinstance(avro, list):
            # Each has the number of its branch before it.
            for each in avro:
                self.is_empty(each, where)
            return False
        kind = avro["type"]
        if not isinstance(kind, str):
            return self.is_empty(kind, where)
        if kind == "array":
            if self.is_empty(avro["items"], where):
                self.found = self.found or where
            return False
        if kind == "map":
            self.is_empty(avro["values"], where)
            return False
        if kind == "record":
            fields = [self.is_empty(each["type"], f"{where}.{each['name']}".lstrip(".")) for each in avro["fields"]]
            return self._named(avro, empty=all(fields))
        if kind == "fixed":
            return self._named(avro, empty=avro["size"] == 0)
        return self.is_empty(kind, where)

    def _named(self, avro: dict[str, Any], *, empty: bool) -> bool:
        name = avro["name"].rpartition(".")[2]
        # Two types may have one name in different namespaces; it may be either.
        self._empty[name] = self._empty.get(name, False) or empty
        return empty


def boundless_array(definition: Any) -> str | None:
    """Return the path of a field with an array whose items take no bytes; None if there is none."""
    items = _Items()
    items.is_empty(definition, "")
    return items.found
