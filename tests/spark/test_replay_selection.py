"""The archived messages that ``heliograph-spark replay`` sends; files and Spark decide on them, without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from heliograph_spark.jobs.replay_options import ReplayOptions
from heliograph_spark.jobs.replay_rows import encoded
from heliograph_spark.jobs.replay_selection import selected
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.run.archived import keep_columns, topic_directory
from heliograph_spark.run.schemas import METADATA
from heliograph_spark.run.session import Broker
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructType

TOPIC = "persistent://public/default/t"
NAMES = ("__publishTime", "__eventTime")
#: Midnights: the archive has a directory for each day of publish times.
FROM_MS, UNTIL_MS = 1_700_006_400_000, 1_700_092_800_000
#: Both borders with the microseconds around them.
TIMES_US = [border * 1000 + off for border in (FROM_MS, UNTIL_MS) for off in (-1, 0, 1)]


def moment(at_us: int | None) -> datetime | None:
    return None if at_us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)


def write_archive(spark: SparkSession, path: Path, times_us: Iterable[tuple[int, int | None]]) -> dict[str, Path]:
    """Archive messages by their publish and event times (µs since 1970); return the file of each day."""
    keep_columns(spark, str(path), TOPIC, StructType([METADATA[name] for name in NAMES]))
    days: dict[str, list[Mapping[str, datetime | None]]] = {}
    for published, event in times_us:
        row = dict(zip(NAMES, (moment(published), moment(event)), strict=True))
        days.setdefault(str(row["__publishTime"])[:10], []).append(row)
    schema = pa.schema([(name, pa.timestamp("us", "UTC")) for name in NAMES])
    files = {}
    for day, rows in days.items():
        files[day] = Path(topic_directory(str(path), TOPIC)) / f"date={day}" / "q-00000000-0.parquet"
        files[day].parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema), files[day])
    return files


def options(path: Path, **given: Any) -> ReplayOptions:
    return ReplayOptions(Broker("pulsar://nowhere"), str(path), TOPIC, "to", **given)


def times_of(spark: SparkSession, path: Path, **given: Any) -> list[tuple[int, int | None]]:
    """The publish and event times of the messages that are selected."""
    rows = selected(spark, options(path, **given), TOPIC).rows
    found = rows.selectExpr("unix_micros(__publishTime)", "unix_micros(__eventTime)").collect()
    return sorted((tuple(row) for row in found), key=str)


def test_a_range_has_its_start_and_not_its_end_and_no_message_without_the_time(
    spark: SparkSession, tmp_path: Path
) -> None:
    archived = [*product(TIMES_US, [*TIMES_US, None])]
    write_archive(spark, tmp_path, archived)

    def within(at_us: int | None, from_ms: int | None, until_ms: int | None) -> bool:
        if from_ms is None and until_ms is None:
            return True
        if at_us is None:
            return False
        return (from_ms is None or from_ms * 1000 <= at_us) and (until_ms is None or at_us < until_ms * 1000)

    both = FROM_MS, UNTIL_MS
    for published, event in (
        *product([(None, None)], [both, (FROM_MS, None), (None, UNTIL_MS), (0, None)]),
        (both, (None, None)),
        ((FROM_MS, None), both),
    ):
        given = dict(zip(("from_ms", "until_ms", "event_from_ms", "event_until_ms"), (*published, *event), strict=True))
        wanted = [row for row in archived if within(row[0], *published) and within(row[1], *event)]
        assert times_of(spark, tmp_path, **given) == sorted(wanted, key=str), given


def test_rows_of_other_event_times_are_not_read_if_their_file_has_statistics(
    spark: SparkSession, tmp_path: Path
) -> None:
    day_us = (UNTIL_MS - FROM_MS) * 1000
    first, second = (FROM_MS * 1000, UNTIL_MS * 1000), (UNTIL_MS * 1000, UNTIL_MS * 1000 + day_us)
    files = write_archive(spark, tmp_path, [first, second])
    damaged = files[str(moment(first[0]))[:10]]
    content = bytearray(damaged.read_bytes())
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[4:footer] = bytes(footer - 4)
    damaged.write_bytes(content)
    assert times_of(spark, tmp_path, event_from_ms=UNTIL_MS + 1) == [second]
    with pytest.raises(Exception, match=damaged.name):
        times_of(spark, tmp_path, event_from_ms=UNTIL_MS)


@pytest.mark.parametrize(("begin", "end"), [("from", "until"), ("event_from", "event_until")])
def test_a_range_that_ends_before_it_begins_is_refused_with_both_moments(begin: str, end: str) -> None:
    named = " and ".join(f"--{name.replace('_', '-')}" for name in (begin, end))
    for until_ms in (5, 4):
        moments = f"1970-01-01T00:00:00.005Z is not before 1970-01-01T00:00:00.00{until_ms}Z"
        with pytest.raises(OptionError, match=f"^{named}: the range ends before it begins: {moments}$"):
            options(Path("p"), **{f"{begin}_ms": 5, f"{end}_ms": until_ms}).check()
    options(Path("p"), **{f"{begin}_ms": 5, f"{end}_ms": 6}).check()


def test_the_name_of_a_selection_without_event_times_is_what_it_was() -> None:
    # Producer names follow from it: another one would send everything again.
    assert options(Path("p")).selection == ""
    chosen = {"keys": ("b", "a"), "properties": {"n": "1"}}
    assert options(Path("p"), **chosen).selection == '[["a", "b"], [["n", "1"]]]'
    ranges = [{"event_from_ms": 1}, {"event_until_ms": 1}, {"event_from_ms": 1, "event_until_ms": 2}]
    assert len({"", *(options(Path("p"), **each).selection for each in ranges)}) == 4
    assert len({options(Path("p"), **chosen, **each).selection for each in ({}, *ranges)}) == 4


def test_a_field_keeps_its_value_whatever_it_is_called(spark: SparkSession) -> None:
    fields = StructType().add("__number", IntegerType()).add("__bucket", StringType())
    message_id = pulsar.MessageId(-1, 7, 2, -1).serialize()
    columns = StructType([*fields, *(METADATA[name] for name in ("__topic", "__messageId", "__publishTime"))])
    rows = spark.createDataFrame([(77, "b", TOPIC, message_id, moment(0))], columns)
    (message,) = encoded(rows, fields, None, 1, 1, by_position=False).collect()
    # Avro: each field is there (2), the number doubled, the text after its length, doubled.
    assert message.value == b"\x02\x9a\x01" + b"\x02\x02b"
