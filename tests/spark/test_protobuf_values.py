"""Protobuf messages become columns by the descriptors in the topic's schema."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.decode.kept_values import UnfitValue, kept_values
from heliograph_spark.decode.protobuf_buffers import COMPILED
from heliograph_spark.decode.protobuf_values import ProtobufValues
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.encoding import Encoder
from heliograph_spark.run.schemas import METADATA, TopicSchema, columns_of, read_schema
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient

from .test_batch_read import read
from .test_key_values import with_length

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
F = FieldDescriptorProto
INTS = {
    **dict.fromkeys(["int32", "sint32", "sfixed32"], (-(1 << 31), (1 << 31) - 1, "int")),
    **dict.fromkeys(["int64", "sint64", "sfixed64"], (-(1 << 63), (1 << 63) - 1, "bigint")),
    **dict.fromkeys(["uint32", "fixed32"], (0, (1 << 32) - 1, "bigint")),
    **dict.fromkeys(["uint64", "fixed64"], (0, (1 << 64) - 1, "decimal(20,0)")),
}


def a_file() -> FileDescriptorProto:
    """Return a file with a message ``Row`` of everything in proto3."""
    file = FileDescriptorProto(name="row.proto", package="of.tests", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"])
    color = file.enum_type.add(name="Color")
    for number, name in ((0, "NONE"), (1, "RED"), (5, "BLUE")):
        color.value.add(name=name, number=number)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    row = file.message_type.add(name="Row")
    names = {**dict.fromkeys(INTS), **dict.fromkeys(["float", "double", "bool", "string", "bytes"])}
    messages = {"inner": "Inner", "at": ".google.protobuf.Timestamp", "took": ".google.protobuf.Duration"}

    def add(name: str, kind: int, of: str = "", label: Any = F.LABEL_OPTIONAL, **more: Any) -> None:
        field = row.field.add(name=name, number=len(row.field) + 1, type=kind, label=label, **more)
        if of:
            field.type_name = of if of.startswith(".") else f".of.tests.{of}"

    for name in names:
        add(f"a_{name}", getattr(F, f"TYPE_{name.upper()}"))
    add("a_color", F.TYPE_ENUM, "Color")
    for name, of in messages.items():
        add(f"an_{name}", F.TYPE_MESSAGE, of)
    add("maybe", F.TYPE_INT32, proto3_optional=True, oneof_index=1)
    add("one", F.TYPE_INT32, oneof_index=0)
    add("other", F.TYPE_STRING, oneof_index=0)
    row.oneof_decl.add(name="either")
    row.oneof_decl.add(name="_maybe")
    add("numbers", F.TYPE_UINT64, label=F.LABEL_REPEATED)
    add("colors", F.TYPE_ENUM, "Color", F.LABEL_REPEATED)
    add("times", F.TYPE_MESSAGE, messages["at"], F.LABEL_REPEATED)
    add("inners", F.TYPE_MESSAGE, "Inner", F.LABEL_REPEATED)
    for name, kind, of in (("by_name", F.TYPE_MESSAGE, ".of.tests.Inner"), ("counts", F.TYPE_SINT64, "")):
        entry = row.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=kind, type_name=of or None, label=F.LABEL_OPTIONAL)
        add(name, F.TYPE_MESSAGE, f"Row.{entry.name}", F.LABEL_REPEATED)
    return file


def data_of(root: str, *files: FileDescriptorProto) -> str:
    """Return the data of a schema, as Java's client writes them; the order of the files says nothing."""
    encoded = base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()
    return json.dumps(
        {"fileDescriptorSet": encoded, "rootMessageTypeName": root, "rootFileDescriptorName": files[0].name}
    )


def imported(*modules: Any) -> list[FileDescriptorProto]:
    return [FileDescriptorProto.FromString(each.DESCRIPTOR.serialized_pb) for each in modules]


TIMES = imported(timestamp_pb2, duration_pb2)
POOL = DescriptorPool()
for each in (*TIMES, a_file()):
    POOL.Add(each)
ROW: Any = GetMessageClass(POOL.FindMessageTypeByName("of.tests.Row"))
DATA = data_of("of.tests.Row", a_file(), *TIMES)


def columns(data: str) -> t.StructType:
    found = columns_of(TopicSchema("PROTOBUF_NATIVE", data), "t")
    return t.StructType([field for field in found if field.name not in METADATA.names])


#: In bulk, and one by one.
WAYS = [pytest.param(True, marks=pytest.mark.skipif(not COMPILED, reason="the modules are not compiled")), False]


def decoded(data: str, *values: bytes | None, compiled: bool) -> list[dict[str, Any]]:
    fields = to_arrow_schema(columns(data), timezone="UTC")
    decoder = ProtobufValues(data, fields, compiled=compiled)
    found = list(decoder.columns(pa.array(values, pa.binary()), pa.nulls(len(values))))
    for column in found:
        column.validate(full=True)
    rows: list[dict[str, Any]] = pa.RecordBatch.from_arrays(found, schema=fields).to_pylist(maps_as_pydicts="strict")
    return rows


def _inner(n: int) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName("of.tests.Inner"))(n=n)


@pytest.mark.parametrize("compiled", WAYS)
@given(st.data())
def test_each_field_is_what_was_set(compiled: bool, data: st.DataObject) -> None:
    """Set some fields by Protobuf's own interface; the row says the same in Python's own types."""
    small, texts, micros = st.integers(-9, 9), st.text(max_size=3), st.integers(-(10**15), 10**15)
    rows, contents = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        message, row = ROW(), dict.fromkeys(columns(DATA).names)
        row |= {"a_float": 0.0, "a_double": 0.0, "a_bool": False, "a_string": "", "a_bytes": b"", "a_color": "NONE"}
        row |= {"numbers": [], "colors": [], "times": [], "inners": [], "by_name": {}, "counts": {}}
        for name, (first, last, kind) in INTS.items():
            number = data.draw(st.just(0) | st.integers(first, last))
            setattr(message, f"a_{name}", number)
            row[f"a_{name}"] = Decimal(number) if kind.startswith("decimal") else number
        for name, values in {
            "a_float": st.floats(width=32, allow_nan=False),
            "a_double": st.floats(allow_nan=False),
            "a_bool": st.booleans(),
            "a_string": texts,
            "a_bytes": st.binary(max_size=3),
            "maybe": small,
        }.items():
            if data.draw(st.booleans()):
                row[name] = data.draw(values)
                setattr(message, name, row[name])
        number = data.draw(st.sampled_from([0, 1, 5, 7]))
        message.a_color, row["a_color"] = number, {0: "NONE", 1: "RED", 5: "BLUE", 7: "7"}[number]
        which = data.draw(st.sampled_from(["one", "other", ""]))
        if which:
            row[which] = data.draw(small if which == "one" else texts)
            setattr(message, which, row[which])
        if data.draw(st.booleans()):
            n, at, took = data.draw(small), data.draw(micros), data.draw(micros)
            message.an_inner.n = n
            message.an_at.FromMicroseconds(at)
            message.an_took.FromMicroseconds(took)
            times = timedelta(microseconds=at), timedelta(microseconds=took)
            row |= {"an_inner": {"n": n}, "an_at": EPOCH + times[0], "an_took": times[1]}
        numbers = data.draw(st.lists(small, max_size=3))
        message.numbers.extend(map(abs, numbers))
        message.colors.extend([5 for _ in numbers])
        message.inners.extend(map(_inner, numbers))
        for number in numbers:
            message.times.add().FromMicroseconds(number)
            message.by_name[str(number)].n = number
            message.counts[str(number)] = number
        row["numbers"] = [Decimal(abs(number)) for number in numbers]
        row |= {"colors": ["BLUE" for _ in numbers], "inners": [{"n": number} for number in numbers]}
        row["times"] = [EPOCH + timedelta(microseconds=number) for number in numbers]
        row["by_name"] = {str(number): {"n": number} for number in numbers}
        row["counts"] = {str(number): number for number in numbers}
        rows += [row, dict.fromkeys(row)]
        contents += [message.SerializeToString(), None]
    assert decoded(DATA, *contents, compiled=compiled) == rows


def test_the_columns_of_each_type() -> None:
    kinds = {field.name: field.dataType.simpleString() for field in columns(DATA)}
    assert {name: kinds[f"a_{name}"] for name in INTS} == {name: kind for name, (_, _, kind) in INTS.items()}
    assert [kinds[f"a_{name}"] for name in ("float", "double", "bool", "string", "bytes", "color")] == [
        *("float", "double", "boolean", "string", "binary", "string")
    ]
    assert kinds["an_inner"] == "struct<n:int>"
    assert (kinds["an_at"], kinds["an_took"]) == ("timestamp", "interval day to second")
    assert (kinds["inners"], kinds["by_name"]) == ("array<struct<n:int>>", "map<string,struct<n:int>>")


@pytest.mark.parametrize("compiled", WAYS)
def test_in_proto2_a_field_that_is_not_set_is_null_or_its_default(compiled: bool) -> None:
    file = FileDescriptorProto(name="old.proto", syntax="proto2")
    message = file.message_type.add(name="Old")
    message.field.add(name="plain", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    message.field.add(name="seven", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL, default_value="7")
    data = data_of("Old", file)
    found = decoded(data, b"", b"\x08\x00\x10\x05", compiled=compiled)
    assert found == [{"plain": None, "seven": 7}, {"plain": 0, "seven": 5}]


@pytest.mark.parametrize("compiled", WAYS)
def test_what_does_not_fit_is_named_by_its_row_and_may_be_kept(compiled: bool) -> None:
    good = ROW(a_string="x").SerializeToString()
    far = ROW()
    far.an_at.seconds = 1 << 60
    for bad, why in ((b"\xff", "it is not PROTOBUF_NATIVE"), (far.SerializeToString(), "field 'an_at': ")):
        with pytest.raises(UnfitValue, match=why) as unfit:
            decoded(DATA, good, None, bad, compiled=compiled)
        assert unfit.value.row == 2
        fields = to_arrow_schema(columns(DATA), timezone="UTC")
        decoder = ProtobufValues(DATA, fields, compiled=compiled)
        kept, *found = kept_values(decoder, pa.array([good, bad, good]), pa.nulls(3, pa.binary()), {})
        assert [each and each["value"] for each in kept.to_pylist()] == [None, bad, None]
        assert found[fields.names.index("a_string")].to_pylist() == ["x", None, "x"]


def test_what_has_no_columns_is_refused_by_name() -> None:
    value = data_of("google.protobuf.Struct", *imported(struct_pb2))
    with pytest.raises(SchemaError, match=r"the schema of t has no columns here: field .* is within itself"):
        columns(value)
    for broken in ("no json", "{}", data_of("of.tests.Row", a_file()), data_of("of.tests.None", a_file(), *TIMES)):
        with pytest.raises(SchemaError, match="the schema of t has no columns here: it has no descriptors of its"):
            columns(broken)
    with pytest.raises(SchemaError, match="the schema of t is of type PROTOBUF, which has no columns here"):
        columns_of(read_schema(wire.Schema(name="n", type=wire.Schema.Protobuf, schema_data=b"{}"), "t"), "t")


def test_its_messages_and_keys_with_values_are_not_written() -> None:
    string = TopicSchema("STRING")
    for schema in (TopicSchema("PROTOBUF_NATIVE", DATA), TopicSchema("KEY_VALUE", None, (string, string))):
        found = columns_of(schema, "t")
        with pytest.raises(SchemaError, match=f"the topic's schema is {schema.kind}, which cannot be written here"):
            Encoder(found, topic_given=False, schema=schema)


def test_a_topic_of_protobuf_in_spark(
    spark: SparkSession, broker: BrokerProcess, client: pulsar.Client, topic: str
) -> None:
    """A topic of messages, and one of them with keys, whose bad ones are kept."""
    messages = [ROW(a_int32=5, a_uint64=(1 << 64) - 1, one=1, numbers=[1, 2]), ROW(a_string="x")]
    messages[0].an_at.FromMicroseconds(1)
    messages[0].an_took.FromMicroseconds(-1)
    messages[0].by_name["k"].n = 7
    contents = [each.SerializeToString() for each in messages]
    native = wire.Schema(name="Row", type=wire.Schema.ProtobufNative, schema_data=DATA.encode())
    keyed = wire.Schema(name="KeyValue", type=wire.Schema.KeyValue)
    keyed.schema_data = with_length(b"") + with_length(DATA.encode())
    for name, text in (("key.schema.type", "STRING"), ("value.schema.type", "PROTOBUF_NATIVE")):
        keyed.properties.add(key=name, value=text)
    with WireClient(broker.service_url) as wire_client:
        wire_client.producer(f"persistent://public/default/{topic}", schema=native)
        wire_client.producer(f"persistent://public/default/{topic}-keyed", schema=keyed)
    plain, of_keys = client.create_producer(topic), client.create_producer(f"{topic}-keyed")
    for content in (*contents, b"\xff"):
        plain.send(content)
        of_keys.send(with_length(b"key") + with_length(content))
    asked = ["a_int32", "a_string", "a_uint64", "one", "an_at", "an_took", "by_name", "numbers"]
    found = []
    for name, prefix in ((topic, ""), (f"{topic}-keyed", "value.value.")):
        frame = read(spark, broker, topic=name, badRecords="column").orderBy("__publishTime", "__messageId")
        rows = frame.selectExpr(*(prefix + each for each in asked), "__badRecord.reason AS reason").collect()
        assert "it is not PROTOBUF_NATIVE as the topic's schema says" in rows[2].reason
        assert [row.reason for row in rows[:2]] == [None, None]
        found.append([row.asDict(recursive=True) for row in rows])
    first, second, third = found[0]
    assert first == {
        "a_int32": 5,
        "a_string": "",
        "a_uint64": Decimal((1 << 64) - 1),
        "one": 1,
        "an_at": first["an_at"],
        "an_took": timedelta(microseconds=-1),
        "by_name": {"k": {"n": 7}},
        "numbers": [1, 2],
        "reason": None,
    }
    assert first["an_at"].timestamp() == pytest.approx(0.000001)
    assert (second["a_string"], second["one"], second["an_at"], second["by_name"]) == ("x", None, None, {})
    assert all(third[name] is None for name in asked)
    assert found[1][:2] == found[0][:2]
