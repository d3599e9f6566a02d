"""Values are decoded in bulk to what each of them is alone, and the first that does not fit is named by its row."""

from __future__ import annotations

import base64
import io
import json
import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from heliograph_spark.decode.avro_lengths import boundless_array
from heliograph_spark.decode.json_lines import JsonLines
from heliograph_spark.decode.kept_values import UnfitValue, Values
from heliograph_spark.decode.primitives import PRIMITIVE_TYPES, PrimitiveValues
from heliograph_spark.decode.values import AvroValues, JsonValues, values_of
from heliograph_spark.plan.errors import SchemaError
from heliograph_spark.run.decoding import _values
from heliograph_spark.run.schemas import TopicSchema, columns_of
from hypothesis import given
from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_NS = 86_400_000_000_000
MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)

#: How Java's schema writes each, what is written, and what it is then.
_NUMBERS = {"INT8": (">b", 8), "INT16": (">h", 16), "INT32": (">i", 32), "INT64": (">q", 64)}
_FLOATS = {"FLOAT": (">f", 32), "DOUBLE": (">d", 64)}


def _given(kind: str) -> st.SearchStrategy[tuple[bytes, Any]]:
    if kind in _NUMBERS:
        code, bits = _NUMBERS[kind]
        return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(lambda each: (struct.pack(code, each), each))
    if kind in _FLOATS:
        code, width = _FLOATS[kind]
        floats = st.floats(width=width, allow_nan=False)  # type: ignore[arg-type]
        return floats.map(lambda each: (struct.pack(code, each), each))
    if kind == "BOOLEAN":
        return st.integers(0, 255).map(lambda each: (bytes([each]), each != 0))
    if kind == "STRING":
        return st.text(max_size=5).map(lambda each: (each.encode(), each))
    if kind == "TIME":
        # Java's type holds any milliseconds, also those of a clock in another zone.
        return st.integers(-(1 << 63), (1 << 63) - 1).map(lambda ms: (struct.pack(">q", ms), ms))
    if kind == "LOCAL_TIME":
        return st.integers(0, DAY_NS - 1).map(lambda ns: (struct.pack(">q", ns), ns))
    moment = MS.map(lambda ms: (struct.pack(">q", ms), EPOCH + timedelta(milliseconds=ms)))
    return moment.map(lambda pair: (pair[0], pair[1].date())) if kind == "DATE" else moment


def _decoded(values: Values, given: list[bytes | None], versions: list[bytes | None] | None = None) -> list[pa.Array]:
    """Decode the values as a part of more, as batches are cut."""
    more = pa.array([b"before", *given, b"after"], pa.binary())
    of = pa.array([None, *(versions or [None] * len(given)), None], pa.binary())
    found = list(values.columns(more.slice(1, len(given)), of.slice(1, len(given))))
    for each in found:
        each.validate(full=True)
        assert len(each) == len(given)
    return found


@pytest.mark.parametrize("kind", PRIMITIVE_TYPES)
@given(data=st.data())
def test_primitives(kind: str, data: st.DataObject) -> None:
    pairs = data.draw(st.lists(st.none() | _given(kind), max_size=20))
    (column,) = _decoded(PrimitiveValues(kind), [pair and pair[0] for pair in pairs])
    assert column.type == PRIMITIVE_TYPES[kind]
    assert column.to_pylist() == [pair and pair[1] for pair in pairs]


@pytest.mark.parametrize("kind", [kind for kind in PRIMITIVE_TYPES if kind != "STRING"])
def test_a_primitive_of_another_width_is_named_by_its_row(kind: str) -> None:
    good = bytes(_decoded(PrimitiveValues(kind), [])[0].type.bit_width // 8)
    good = {"BOOLEAN": b"\0", "DATE": bytes(8)}.get(kind, good)
    with pytest.raises(
        UnfitValue, match=f"it is not {kind} as the topic's schema says: {len(good) + 1} bytes"
    ) as unfit:
        _decoded(PrimitiveValues(kind), [good, None, good + b"\0", b""])
    assert unfit.value.row == 2


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        *(("STRING", b"\xff"), ("TIMESTAMP", b"\x7f" * 8), ("TIMESTAMP", b"\x80" * 8), ("DATE", b"\x7f" * 8)),
        *(("LOCAL_TIME", struct.pack(">q", -1)), ("LOCAL_TIME", struct.pack(">q", DAY_NS))),
    ],
)
def test_a_primitive_that_no_column_holds_is_named_by_its_row(kind: str, bad: bytes) -> None:
    with pytest.raises(UnfitValue, match=f"it is not {kind}") as unfit:
        _decoded(PrimitiveValues(kind), [None, bytes(8), bad])
    assert unfit.value.row == 2


@pytest.mark.parametrize(
    ("kind", "column", "bad"),
    [
        # Java's last Instant, LocalDate and LocalDateTime, which stand for "never".
        ("INSTANT", pa.timestamp("us", "UTC"), struct.pack(">qi", 31_556_889_864_403_199, 999_999_999)),
        ("LOCAL_DATE", pa.date32(), struct.pack(">q", 365_241_780_471)),
        ("LOCAL_DATE_TIME", pa.timestamp("us"), struct.pack(">qq", 365_241_780_471, 0)),
        ("INSTANT", pa.timestamp("us", "UTC"), b"\0"),
    ],
)
def test_a_time_of_java_that_no_column_holds_is_named_by_its_row(kind: str, column: pa.DataType, bad: bytes) -> None:
    values = _values(TopicSchema(kind), pa.schema([("value", column)]), _no_version)
    assert values is not None
    good = bytes(len(bad)) if len(bad) > 1 else bytes(12)
    with pytest.raises(UnfitValue, match=f"it is not {kind} as the topic's schema says: ") as unfit:
        _decoded(values, [None, good, bad])
    assert unfit.value.row == 2
    assert _decoded(values, [good])[0].cast(pa.int32() if kind == "LOCAL_DATE" else pa.int64()).to_pylist() == [0]


def _no_version(version: bytes) -> TopicSchema:
    raise AssertionError("nobody asks for a version here")


@pytest.mark.parametrize(
    ("logical", "kind"),
    [("timestamp-millis", "long"), ("timestamp-micros", "long"), ("date", "int")],
)
def test_a_time_in_avro_that_no_column_holds_is_named_by_its_row(logical: str, kind: str) -> None:
    """Java's largest number stands for a time that never comes."""
    definition = _record("R", at={"type": kind, "logicalType": logical})
    column = pa.date32() if logical == "date" else pa.timestamp("us", "UTC")
    values = AvroValues(json.dumps(definition), pa.schema([("at", column)]), lambda _: "")
    never = _avro(_record("R", at=kind), {"at": (1 << 63) - 1 if kind == "long" else (1 << 31) - 1})
    with pytest.raises(UnfitValue, match="it is not AVRO as the topic's schema says: ") as unfit:
        _decoded(values, [_avro(_record("R", at=kind), {"at": 0}), never])
    assert unfit.value.row == 1


FIELDS = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("data", pa.binary()),
        ("score", pa.float64()),
        ("inner", pa.struct([("ok", pa.bool_()), ("more", pa.list_(pa.binary()))])),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        "name": st.none() | st.text(max_size=4),
        "data": st.none() | st.binary(max_size=4),
        "score": st.none() | st.floats(allow_nan=False),
        "inner": st.none()
        | st.fixed_dictionaries(
            {}, optional={"ok": st.booleans(), "more": st.lists(st.binary(max_size=3), max_size=2)}
        ),
        "map": st.none() | st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=2),
    },
)


def _filled(record: dict[str, Any] | None) -> dict[str, Any]:
    """Return a record as a row: what is missing is null."""
    row = {name: (record or {}).get(name) for name in FIELDS.names}
    if row["inner"] is not None:
        row["inner"] = {name: row["inner"].get(name) for name in ("ok", "more")}
    if row["map"] is not None:
        row["map"] = list(row["map"].items())
    return row


@given(st.lists(st.none() | RECORDS, max_size=6))
def test_records_in_json(records: list[dict[str, Any] | None]) -> None:
    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    def written(record: dict[str, Any] | None) -> bytes | None:
        return None if record is None else json.dumps(record | {"unknown": [1]}, default=text).encode()

    found = _decoded(JsonValues(FIELDS), [written(record) for record in records])
    assert pa.RecordBatch.from_arrays(found, schema=FIELDS).to_pylist() == [_filled(record) for record in records]


PLAIN = pa.schema(
    [
        ("id", pa.int32()),
        ("long", pa.int64()),
        ("name", pa.string()),
        ("half", pa.float32()),
        ("score", pa.float64()),
        ("inner", pa.struct([("ok", pa.bool_()), ("more", pa.list_(pa.float32()))])),
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ok", "more", "id"]), inner),
    max_leaves=4,
)
PLAIN_RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(1 << 31), (1 << 31) - 1),
        "long": st.integers(-(1 << 63), (1 << 63) - 1),
        "name": st.none() | st.text(max_size=4),
        "half": st.floats(allow_nan=False, allow_infinity=False),
        "score": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
        "inner": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "ok": st.booleans(),
                "more": st.lists(st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False)),
            },
        ),
        "other": ANYTHING.filter(lambda each: not isinstance(each, float)),
    },
)
#: Texts that two parsers may read differently.
ODD = st.sampled_from(
    [
        *(
            b"",
            b" ",
            b"{}",
            b" {} \n",
            b"{}{}",
            b"{} {}",
            b"{}\0}",
            b"{}\n{}",
            b'{"id":',
            b'{"id": 1}}',
            b"[{}]",
            b"null",
        ),
        *(
            b'{"id": 1.0}',
            b'{"id": 1e1}',
            b'{"id": -0}',
            b'{"id": 01}',
            b'{"id": true}',
            b'{"id": "1"}',
            b'{"id": 2147483648}',
        ),
        *(b'{"id": 1, "id": 2}', b'{"id": 1, "id": null}', b'{"id": null, "id": 1}', b'{"id": 1,}', b'{"ID": 1}'),
        *(
            b'{"score": 1e999}',
            b'{"score": -1e999}',
            b'{"score": NaN}',
            b'{"score": Infinity}',
            b'{"score": 1.}',
            b'{"score": .1}',
        ),
        *(
            b'{"score": %s}' % digits
            for digits in (b"9" * 30, b"9" * 400, b"-" + b"9" * 400, b"9" * 5000, b"0." + b"1" * 5000)
        ),
        *(b'{"half": %s}' % digits for digits in (b"16777217", b"1.00000017881393432617187499", b"3.5e38", b"1e-50")),
        *(
            b'{"name": "\\ud83d\\ude00"}',
            b'{"name": "\\ud83d"}',
            b'{"name": "\\ude00"}',
            b'{"name": "\\u0000"}',
            b'{"name": "\n"}',
        ),
        *(
            b'{"name": "\xff"}',
            b'{"other": "\xff"}',
            b'{"name": "\xed\xa0\x80"}',
            b'{"name": 5}',
            b'{"name": "\t"}',
            b'{"other": "\\ud83d"}',
        ),
        *(b'\xef\xbb\xbf{"id": 1}', '{"id": 1}'.encode("utf-16"), '{"id": 1}'.encode("utf-16-le"), b'{"id": 1} // one'),
        *(
            b'{"inner": {}}',
            b'{"inner": []}',
            b'{"inner": {"more": {}}}',
            b'{"inner": {"more": [1, null, 2.5]}}',
            b'{"inner": {"ok": 1}}',
        ),
        *(b'{"other": %s}' % (b"[" * depth + b"]" * depth) for depth in (3, 100_000)),
        *(b'{"other": %s}' % (b'{"a":' * depth + b"1" + b"}" * depth) for depth in (3, 100_000)),
    ]
)


def _as_bits(columns: list[pa.Array]) -> list[list[Any]]:
    """Return what columns hold, in which NaN is itself."""
    return [list(map(repr, each.to_pylist())) for each in columns]


@given(st.lists(st.none() | PLAIN_RECORDS.map(lambda each: json.dumps(each).encode()), min_size=1, max_size=6))
def test_records_in_json_are_read_in_bulk_as_each_alone(written: list[bytes | None]) -> None:
    reader = JsonLines.for_fields(PLAIN)
    assert reader is not None
    found = reader.columns(pa.array(written, pa.binary()))
    assert found is not None
    assert _as_bits(_decoded(JsonValues(PLAIN, in_bulk=False), written)) == _as_bits(found)


@given(
    st.lists(
        ODD | st.dictionaries(st.sampled_from(PLAIN.names), ANYTHING).map(lambda each: json.dumps(each).encode()),
        max_size=4,
    )
)
def test_odd_json_is_the_same_in_bulk_and_alone(written: list[bytes]) -> None:
    def decoded(*, in_bulk: bool) -> tuple[int, str] | list[list[Any]]:
        try:
            return _as_bits(_decoded(JsonValues(PLAIN, in_bulk=in_bulk), list(written)))
        except UnfitValue as error:
            return error.row, error.reason

    assert decoded(in_bulk=True) == decoded(in_bulk=False)


def test_bytes_and_maps_in_json_are_read_one_by_one() -> None:
    for kind in (pa.binary(), pa.map_(pa.string(), pa.int64())):
        for of in (kind, pa.list_(kind), pa.struct([("a", kind)])):
            assert JsonLines.for_fields(pa.schema([("id", pa.int32()), ("f", of)])) is None


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "it is not JSON"),
        (b"[1]", "it is not JSON as the topic's schema says: the JSON is no object"),
        (b"{} {}", "it is not JSON"),
        (b'{"name": "\xff"}', "it is not JSON"),
        (b'{"id": "x"}', "field 'id' is not int32"),
        (b'{"data": "*"}', "'.' is not base64"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_not_the_json_that_is_expected_is_named_by_its_row(bad: bytes, why: str) -> None:
    with pytest.raises(UnfitValue, match=why) as unfit:
        _decoded(JsonValues(FIELDS), [b"{}", None, bad, b"{}"])
    assert unfit.value.row == 2


def _avro(definition: Any, record: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(json.dumps(definition))), record)
    return written.getvalue()


def _record(name: str, **fields: Any) -> dict[str, Any]:
    with_defaults = {"extra": {"default": "none"}}
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": each, "type": kind, **with_defaults.get(each, {})} for each, kind in fields.items()],
    }


def test_records_in_avro_of_several_versions() -> None:
    uuid = {"type": "string", "logicalType": "uuid"}
    now = _record("Now", id="int", who=["null", uuid], extra="string")
    before = _record("Before", id="int", gone="string", who=["null", uuid])
    fields = pa.schema([("id", pa.int32()), ("who", pa.string()), ("extra", pa.string())])
    asked = []

    def writer(version: bytes) -> str:
        asked.append(version)
        return json.dumps(before if version == b"1" else now)

    values = AvroValues(json.dumps(now), fields, writer)
    who = UUID(int=5)
    old, new = _avro(before, {"id": 1, "gone": "x", "who": who}), _avro(now, {"id": 2, "who": None, "extra": "e"})
    found = _decoded(values, [old, new, None, new, old], [b"1", b"2", b"2", None, b"1"])
    first, second = {"id": 1, "who": str(who), "extra": "none"}, {"id": 2, "who": None, "extra": "e"}
    assert pa.RecordBatch.from_arrays(found, schema=fields).to_pylist() == [
        first,
        second,
        dict.fromkeys(fields.names),
        second,
        first,
    ]
    assert asked == [b"1", b"2"]
    with pytest.raises(UnfitValue, match="it is not AVRO as the topic's schema says") as unfit:
        _decoded(values, [new, new[:-1]])
    assert unfit.value.row == 1


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ({"type": "int", "logicalType": "date"}, 1 << 30),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1 << 60),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1 << 62),
    ],
)
def test_a_moment_in_avro_that_no_column_holds_is_named_by_its_row(kind: Any, number: int, compiled: bool) -> None:
    record = _record("R", at=kind)
    values = [_avro(_record("R", at="long"), {"at": each}) for each in (0, number)]
    fields = pa.schema([("at", pa.date32() if kind["type"] == "int" else pa.timestamp("us", "UTC"))])

    def nothing(version: bytes) -> str:
        raise AssertionError("nobody asks for a version here")

    with pytest.raises(UnfitValue, match="it is not AVRO as the topic's schema says") as unfit:
        _decoded(AvroValues(json.dumps(record), fields, nothing, compiled=compiled), list(values))
    assert unfit.value.row == 1


@pytest.mark.parametrize("in_bulk", [True, False])
def test_a_zero_of_json_keeps_its_sign_whatever_is_beside_it(*, in_bulk: bool) -> None:
    values = JsonValues(pa.schema([("f", pa.float64()), ("i", pa.int32())]), in_bulk=in_bulk)
    floats, integers = _decoded(values, [b'{"f": -0, "i": -0}', b'{"f": 0, "i": 0}'])
    assert [str(each) for each in floats.to_pylist()] == ["-0.0", "0.0"]
    assert integers.to_pylist() == [0, 0]


_NOTHING = {"type": "record", "name": "Nothing", "fields": []}


@pytest.mark.parametrize(
    "items",
    [
        "null",
        _NOTHING,
        {"type": "fixed", "name": "None", "size": 0},
        {"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]},
    ],
)
def test_an_array_of_items_without_bytes_is_no_column(items: Any) -> None:
    """Ten bytes could say that there are a trillion of them."""
    array = {"type": "array", "items": items}
    definition = json.dumps(_record("R", id="int", many={"type": "map", "values": ["null", array]}))
    with pytest.raises(SchemaError, match="field many of t is an array of items without bytes, of which a short"):
        columns_of(TopicSchema("AVRO", definition), "t")
    # So is one that a message was written with.
    own = json.dumps(_record("R", id="int"))
    values = AvroValues(own, pa.schema([("id", pa.int32())]), lambda _: definition)
    with pytest.raises(UnfitValue, match="field many of version 31 is an array of items without bytes"):
        _decoded(values, [b"\2\0"], [b"1"])


def test_arrays_of_items_with_bytes_are_columns() -> None:
    twice = {
        "type": "record",
        "name": "Twice",
        "fields": [{"name": "a", "type": _NOTHING}, {"name": "b", "type": "int"}],
    }
    arrays = [{"type": "array", "items": each} for each in (twice, "Twice", ["null", "int"], {"type": "string"})]
    assert boundless_array(_record("R", **{f"f{at}": each for at, each in enumerate(arrays)})) is None
    assert boundless_array(_record("R", a=_NOTHING, b={"type": "array", "items": "ns.Nothing"})) == "b"


def test_bytes_stay_and_other_schemas_are_refused() -> None:
    def nothing(version: bytes) -> str:
        raise AssertionError("nobody asks for a version here")

    for kind in ("NONE", "BYTES"):
        assert values_of(kind, None, FIELDS, nothing) is None
    assert isinstance(values_of("INT32", None, FIELDS, nothing), PrimitiveValues)
    assert isinstance(values_of("JSON", None, FIELDS, nothing), JsonValues)
    assert isinstance(values_of("AVRO", json.dumps(_record("R")), FIELDS, nothing), AvroValues)
    with pytest.raises(ValueError, match="a schema of type PROTOBUF has no columns"):
        values_of("PROTOBUF", None, FIELDS, nothing)


def test_days_before_1970_begin_at_midnight() -> None:
    day = timedelta(days=1)
    given = [
        struct.pack(">q", at // timedelta(milliseconds=1)) for at in (-day, -day + timedelta(milliseconds=1), 0 * day)
    ]
    (column,) = _decoded(PrimitiveValues("DATE"), list(given))
    assert column.to_pylist() == [date(1969, 12, 31), date(1969, 12, 31), date(1970, 1, 1)]
