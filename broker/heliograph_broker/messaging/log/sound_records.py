"""The records a start reads: those that cannot be decoded are kept aside, and others take their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from heliograph_broker.messaging.base import records

from . import unreadable_records

if TYPE_CHECKING:
    from heliograph_broker.messaging.base.histograms import BrokerMetrics
    from heliograph_broker.storage.disk.metadata import Metadata

    from .record_set import BrokerRecords

T = TypeVar("T")
log = structlog.get_logger(__name__)


class SoundRecords:
    """Records of a loading broker in the store; see :mod:`.unreadable_records`."""

    __slots__ = ("_metadata", "_replacements")

    def __init__(self, metadata: Metadata, own: BrokerRecords, metrics: BrokerMetrics, now_ms: int) -> None:
        """Have ``own`` write the records that are set aside and their replacements, and log and count them."""
        self._metadata = metadata
        #: The replacement of a record that cannot be read, None if there is none.
        self._replacements: dict[bytes, bytes | None] = {}
        metrics.unreadable_records = sum(1 for _ in metadata.scan(records.UNREADABLE))
        if not any(unreadable_records.find(metadata.scan(prefix)) for prefix in unreadable_records.PREFIXES):
            return
        found, aside, self._replacements = unreadable_records.contain(dict(metadata.scan(b"")), now_ms)
        for each in found:
            log.error(
                "a record cannot be read; it is kept aside",
                record=unreadable_records.readable_key(each.key),
                reason=each.reason,
                replaced=self._replacements[each.key] is not None,
            )
        for key, value in aside.items():
            own.put(key, value)
        for key, instead in self._replacements.items():
            if instead is None:
                own.delete(key)
            else:
                own.put(key, instead)
        metrics.unreadable_records += len(aside)

    @property
    def complete(self) -> bool:
        """Whether every record could be read."""
        return not self._replacements

    def get(self, key: bytes) -> bytes | None:
        """Return a record, None without one."""
        return self._replacements[key] if key in self._replacements else self._metadata.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records whose key begins with ``prefix``, in order."""
        for key, value in self._metadata.scan(prefix):
            taken = self._replacements.get(key, value)
            if taken is not None:
                yield key, taken

    def decoded(self, prefix: bytes, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Yield the names behind ``prefix``, in order, and the records of ``kind``."""
        decoder = msgspec.msgpack.Decoder(kind)
        for key, value in self.scan(prefix):
            yield key[len(prefix) :].decode(), decoder.decode(value)
