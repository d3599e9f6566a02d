"""Decisions of a replay without Spark: a task's rate, the order of messages, the meaning of a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pulsar
import pyarrow as pa
import pytest
from heliograph_spark.jobs.plan.pacing import Pacer, Speed, shares
from heliograph_spark.jobs.replay_rows import encoded_rows
from heliograph_spark.jobs.replay_task import UnderWay, epoch_of, sequence_of
from heliograph_spark.plan.errors import OptionError, PulsarSourceError
from heliograph_spark.plan.timestamps import parse_moment, write_moment
from heliograph_spark.run.encoding import Encoder
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import MapType, StringType, StructType

from .test_sender import rows


class Clock:
    """Time that passes by sleeping, and while a message is sent."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@given(
    rate=st.floats(1, 5000),
    pauses=st.lists(st.one_of(st.just(0.0), st.floats(0, 3)), min_size=1, max_size=300),
)
def test_in_no_window_go_more_messages_than_the_rate_and_one_grain(rate: float, pauses: list[float]) -> None:
    clock = Clock()
    pacer = Pacer(rate, clock, clock.sleep)
    went = []
    for pause in pauses:
        clock.now += pause
        pacer.wait()
        went.append(clock.now)
    for first, start in enumerate(went):
        for last in range(first, len(went)):
            assert last - first <= rate * (went[last] - start + 0.0201) + 1


def test_a_task_that_always_has_something_sends_at_the_rate() -> None:
    clock = Clock()
    pacer = Pacer(1000, clock, clock.sleep)
    for _ in range(10_000):
        pacer.wait()
    assert clock.now == pytest.approx(10, abs=0.03)


def test_the_rate_is_divided_by_what_each_task_has_to_send() -> None:
    assert shares(100, {0: 30, 1: 10, 2: 0}) == {0: 75, 1: 25}


@given(
    factor=st.floats(0.01, 1000),
    recorded=st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 30)), min_size=1, max_size=50),
    late=st.floats(-5, 5),
)
def test_the_gaps_between_messages_are_those_recorded_divided_by_the_factor(
    factor: float, recorded: list[tuple[int, float]], late: float
) -> None:
    clock = Clock()
    speed = Speed(factor, 1_700_000_000_000, begin_s=1000.0)
    clock.now = 1000.0 + late
    at_ms, free_at = 1_700_000_000_000, clock.now
    for gap_ms, pause in recorded:
        at_ms += gap_ms
        due = 1000.0 + (at_ms - 1_700_000_000_000) / 1000 / factor
        speed.wait(at_ms, clock, clock.sleep)
        # A task that was held up sends at once what is due, until it is where it would have been.
        assert clock.now == pytest.approx(max(due, free_at))
        clock.now += pause
        free_at = clock.now


def test_a_rate_holds_up_a_burst_and_the_next_silence_makes_up_for_it() -> None:
    clock = Clock()
    speed, pacer = Speed(2, 0, begin_s=0), Pacer(10, clock, clock.sleep)
    went = []
    for at_ms in [0] * 21 + [10_000]:
        speed.wait(at_ms, clock, clock.sleep)
        pacer.wait()
        went.append(clock.now)
    assert went[20] == pytest.approx(2)
    assert went[21] == pytest.approx(5)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_is_not_above_zero_is_none(factor: float) -> None:
    with pytest.raises(ValueError, match="no factor above zero"):
        Speed(factor, 0, begin_s=0)


IDS = st.tuples(st.integers(0, (1 << 30) - 1), st.integers(0, (1 << 20) - 1), st.integers(-1, (1 << 13) - 2))


@given(IDS, IDS)
def test_sequence_ids_are_ordered_as_the_messages_are(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (sequence_of(*one) < sequence_of(*other)) == (one < other)
    assert 0 <= sequence_of(*one) < 1 << 63


@given(IDS, st.integers(0, (1 << 13) - 1))
def test_sequence_ids_count_within_the_epoch_of_a_ledger_id(place: tuple[int, int, int], epoch: int) -> None:
    ledger, entry, batch = place
    assert epoch_of(epoch << 40 | ledger) == epoch
    assert sequence_of(epoch << 40 | ledger, entry, batch) == sequence_of(ledger, entry, batch)


@pytest.mark.parametrize("place", [(1 << 30, 0, 0), (5 << 40 | 1 << 30, 0, 0), (0, 1 << 20, 0), (0, 0, 1 << 13)])
def test_a_message_id_beyond_what_a_sequence_id_holds_is_refused(place: tuple[int, int, int]) -> None:
    with pytest.raises(PulsarSourceError, match="cannot have a sequence id"):
        sequence_of(*place)


def test_a_message_without_a_sequence_id_is_refused_before_anything_is_sent() -> None:
    encoder = Encoder(StructType().add("value", "string"), topic_given=True)
    beyond = pulsar.MessageId(-1, 7, 1 << 20, -1).serialize()
    row = {"value": "x", "__messageId": beyond, "__topic": "t", "__publishTime": 0, "original number": 0}
    rows = pa.RecordBatch.from_pylist([row])
    assert encoded_rows(rows, encoder, 1, 1, numbered=False).column("entry").to_pylist() == [1 << 20]
    with pytest.raises(PulsarSourceError, match="message 7:1048576:-1 cannot have a sequence id"):
        encoded_rows(rows, encoder, 1, 1, numbered=True)


def test_a_message_that_was_replayed_before_names_its_last_original_only() -> None:
    columns = StructType().add("value", "string").add("__messageProperties", MapType(StringType(), StringType()))
    given = {"own": "1", "replay.topic": "first", "replay.messageId": "1:1", "replay.publishTime": "5"}
    at = pulsar.MessageId(-1, 7, 2, -1).serialize()
    named = {"__messageId": at, "__topic": "t", "__publishTime": 9, "original number": 0}
    found = rows(columns, ("x", given))
    for name, content in named.items():
        found = found.append_column(name, pa.array([content]))
    encoded = encoded_rows(found, Encoder(columns, topic_given=True), 1, 1, numbered=False)
    assert encoded.column("properties").to_pylist() == [
        [("own", "1"), ("replay.publishTime", "9"), ("replay.messageId", "7:2"), ("replay.topic", "t")]
    ]


def test_a_key_goes_on_with_another_producer_when_the_first_ones_messages_are_stored() -> None:
    first, second = (0, "t", 0), (0, "t", 1)
    under_way = UnderWay()
    under_way.begin("k", first)
    under_way.begin("k", first)
    under_way.begin("other", second)
    assert under_way.with_another("k", second) == first
    under_way.end("k")
    assert under_way.with_another("k", second) == first
    assert under_way.with_another("k", first) is None
    under_way.end("k")
    assert under_way.with_another("k", second) is None
    under_way.begin("k", second)
    assert under_way.with_another("k", first) == second


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20.123Z", 1_700_000_000_123),
        ("2023-11-14T23:13:20.123+01:00", 1_700_000_000_123),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_a_moment_is_milliseconds_or_iso_8601(text: str, at_ms: int) -> None:
    assert parse_moment("--from", text) == at_ms
    assert parse_moment("--from", write_moment(at_ms)) == at_ms


def test_what_is_no_moment_is_named() -> None:
    with pytest.raises(OptionError, match="--until: 'yesterday' is neither"):
        parse_moment("--until", "yesterday")
    for text in ("253402300800000", "999999999999999", "9999-12-31T23:59:59-01:00", "1969-12-31"):
        with pytest.raises(OptionError, match=f"--until: '{text}' is not between the years 1970 and 9999"):
            parse_moment("--until", text)


@given(st.integers(0, 253402300799999))
def test_any_moment_is_read_as_it_was_written(at_ms: int) -> None:
    assert parse_moment("--from", str(at_ms)) == at_ms
    assert parse_moment("--from", write_moment(at_ms)) == at_ms


@given(st.integers(1, 253402300799999))
def test_an_event_time_is_sent_to_the_millisecond(at_ms: int) -> None:
    columns = StructType().add("value", "string").add("__eventTime", "timestamp")
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    messages = Encoder(columns, topic_given=True).messages(rows(columns, ("x", at)))
    assert messages.column("event_ms").to_pylist() == [at_ms]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_not_above_zero_is_none(rate: float) -> None:
    with pytest.raises(ValueError, match="no rate above zero"):
        Pacer(rate)
