"""Time that decoding the values of messages takes, by their schema: in bulk, and one by one as what is uncommon is.

Run it with ``benchmarks/run-values``, after ``scripts/setup spark``; see its ``--help``. It needs no broker.
"""

from __future__ import annotations

import base64
import io
import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import fastavro
import pyarrow as pa
import typer
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from heliograph_spark.decode.kept_values import Values
from heliograph_spark.decode.protobuf_values import ProtobufValues
from heliograph_spark.decode.values import AvroValues, JsonValues

#: As many rows as a batch has at most, which is decoded at once.
ROWS = 16_384
FIELDS = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.string()),
        ("degrees", pa.float64()),
        ("sensor", pa.string()),
        ("valid", pa.bool_()),
    ]
)
_AVRO = ("long", "string", "double", ["null", "string"], "boolean")
_PROTOBUF = (
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_DOUBLE,
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_BOOL,
)
DEFINITION = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [{"name": name, "type": kind} for name, kind in zip(FIELDS.names, _AVRO, strict=True)],
    }
)


def record(number: int) -> dict[str, Any]:
    """Return one of the records."""
    sensor = None if number % 10 == 0 else f"sensor-{number % 1000}"
    return {"id": number, "place": "Kyoto", "degrees": number / 7, "sensor": sensor, "valid": number % 2 == 0}


def in_json(number: int) -> bytes:
    return json.dumps(record(number)).encode()


def in_avro(number: int) -> bytes:
    to = io.BytesIO()
    fastavro.schemaless_writer(to, _PARSED, record(number))
    return to.getvalue()


_PARSED = fastavro.parse_schema(json.loads(DEFINITION))


def protobuf() -> tuple[Callable[[int], bytes], ProtobufValues, ProtobufValues]:
    """Return what writes a record in Protobuf, and what decodes it in bulk and one by one."""
    file = FileDescriptorProto(name="reading.proto", syntax="proto3")
    message = file.message_type.add(name="Reading")
    for number, (name, kind) in enumerate(zip(FIELDS.names, _PROTOBUF, strict=True), start=1):
        message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    made = GetMessageClass(pool.FindMessageTypeByName("Reading"))

    def written(number: int) -> bytes:
        given = {name: value for name, value in record(number).items() if value is not None}
        return bytes(made(**given).SerializeToString())

    descriptors = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    definition = json.dumps({"fileDescriptorSet": descriptors, "rootMessageTypeName": "Reading"})
    return written, ProtobufValues(definition, FIELDS), ProtobufValues(definition, FIELDS, compiled=False)


def no_writer(version: bytes) -> str:
    raise AssertionError("all values are of the topic's own schema")


def measure(decoder: Values, written: Callable[[int], bytes], runs: int) -> tuple[float, int]:
    """Return the median processor time of a value (us), and the mean bytes of one."""
    values = pa.array([written(number) for number in range(ROWS)], pa.binary())
    versions = pa.nulls(ROWS, pa.binary())
    taken = []
    for _ in range(runs + 1):
        began = time.process_time()
        columns = decoder.columns(values, versions)
        taken.append(time.process_time() - began)
        if [each.type for each in columns] != FIELDS.types or columns[0].null_count:
            raise RuntimeError(f"the columns are {columns}")
    # The first one has what is made once.
    return statistics.median(taken[1:]) / ROWS * 1e6, sum(map(len, values.to_pylist())) // ROWS


def main(runs: Annotated[int, typer.Option(min=1, help="Readings of the same values; the median counts.")] = 9) -> None:
    """Print the processor time of a record of five fields, which is decoded with 16,383 others."""
    in_protobuf, in_bulk, one_by_one = protobuf()
    measured: list[tuple[str, Values, Callable[[int], bytes]]] = [
        ("JSON", JsonValues(FIELDS), in_json),
        ("JSON, one by one", JsonValues(FIELDS, in_bulk=False), in_json),
        ("Avro", AvroValues(DEFINITION, FIELDS, no_writer), in_avro),
        ("Avro, one by one", AvroValues(DEFINITION, FIELDS, no_writer, compiled=False), in_avro),
        ("Protobuf", in_bulk, in_protobuf),
        ("Protobuf, one by one", one_by_one, in_protobuf),
    ]
    print("| values | bytes | µs each |\n|---|---|---|")
    for name, decoder, written in measured:
        took_us, size = measure(decoder, written, runs)
        print(f"| {name} | {size} | {took_us:.2f} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
