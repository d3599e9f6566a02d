"""The pipeline's decoder: the compiled module gives the same rows and refusals as the one in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from heliograph_api.protocol.frames import EntryError
from heliograph_spark.decode.columns import METADATA_COLUMNS, EntryColumns
from heliograph_spark.decode.entries import UndecodableMessage
from heliograph_spark.decode.rows import COMPILED, OPEN_ENTRY
from heliograph_spark.wire.entry_reader import open_entry
from heliograph_spark.wire.message_heads import MessageHead

from tests.fuzz.target import Finding, Source

from . import metadata

_NAMES = ["value", *METADATA_COLUMNS]
_SCHEMA = pa.schema([(name, METADATA_COLUMNS.get(name, pa.binary())) for name in _NAMES])
#: A batch that says it is larger takes both long.
_MOST_BYTES = 1 << 20

if not COMPILED:
    raise ImportError("the pipeline's modules are not compiled: python pipeline/build_native.py")


def run(data: bytes) -> None:
    source = Source(data)
    flags = source.number()
    words = tuple(source.number(8) - (1 << 63) for _ in range(flags & 3))
    head: MessageHead = (1, 5, 6, flags >> 4, words)
    after, up_to = (source.number() - 1, source.number()) if flags & 4 else (-1, None)
    entry = metadata.entry_of(source)
    expected, found = _opened(open_entry, head, entry), _opened(OPEN_ENTRY, head, entry)
    if isinstance(expected, str) or isinstance(found, str):
        if expected != found:
            raise Finding(f"in Python: {expected}; compiled: {found}")
        return
    for field in ("ledger", "entry", "redelivery_count", "ack_set", "metadata", "payload", "messages"):
        if getattr(expected, field) != getattr(found, field):
            raise Finding(f"{field} in Python: {getattr(expected, field)!r}; compiled: {getattr(found, field)!r}")
    if max(expected.metadata.uncompressed_size, len(expected.payload)) > _MOST_BYTES:
        return
    whole = not flags & 4
    pure = _rows(expected, after, up_to, compiled=False, whole=whole)
    native = _rows(found, after, up_to, compiled=True, whole=whole)
    if pure != native:
        raise Finding(f"in Python: {pure}; compiled: {native}")


def _opened(opens: Any, head: MessageHead, entry: bytes) -> Any:
    try:
        return opens(head, entry)
    except EntryError as error:
        return f"{type(error).__name__}: {error}"


def _rows(entry: Any, after: int, up_to: int | None, *, compiled: bool, whole: bool) -> Any:
    columns = EntryColumns("persistent://a/b/c-partition-2", _SCHEMA, partition=2, compiled=compiled)
    try:
        if not whole or not columns.add_whole(entry):
            columns.add(entry, after, up_to)
    except UndecodableMessage as refused:
        return f"{refused}, {columns.rows} rows"
    rows: list[Any] = []
    for batch in columns.take():
        batch.validate(full=True)
        # Python's datetime ends with the year 9999.
        times = [name for name in batch.schema.names if pa.types.is_timestamp(batch[name].type)]
        plain = [batch[name].cast("int64") if name in times else batch[name] for name in batch.schema.names]
        rows += pa.RecordBatch.from_arrays(plain, batch.schema.names).to_pylist()
    return rows


def seeds() -> Iterator[bytes]:
    for number, seed in enumerate(metadata.seeds()):
        yield b"\0" + seed
        yield bytes([4, 0, number]) + seed
        yield b"\x11" + (5 + (1 << 63)).to_bytes(8, "big") + seed
