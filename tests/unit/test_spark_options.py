"""The options, offsets and ranges of Spark's data source: understood, or refused by name. None of it needs Spark."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_spark.plan.connection import ask_admin
from heliograph_spark.plan.errors import OptionError
from heliograph_spark.plan.ledgers import Ledger, within
from heliograph_spark.plan.options import (
    Connection,
    auth_token,
    basic_user,
    full_name,
    names_of,
    read_options,
    write_options,
)
from heliograph_spark.plan.positions import (
    BEGINNING,
    Position,
    is_of_pulsar_spark,
    parse_offsets,
    parse_times,
    read_offsets,
    write_offsets,
)
from heliograph_spark.plan.ranges import Range, cut, entries_of_part, within_bytes, within_entries
from heliograph_spark.plan.sending import SendSettings
from hypothesis import example, given
from hypothesis import strategies as st

URL = {"service.url": "pulsar://localhost:6650"}
TOPIC = {**URL, "topic": "t"}
POSITIONS = st.builds(Position, st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(-1, 1000))


def test_topics_are_named_so_that_each_is_understood_as_one() -> None:
    plain, commas = ["persistent://a/b/c", "persistent://a/b/d"], ["persistent://a/b/e,f", "persistent://a/b/c,d"]
    asked = [read_options({**URL, **named}, streaming=False).topics for named in names_of([*plain, *commas])]
    assert sorted(topic for topics in asked for topic in topics) == sorted([*plain, *commas])
    # As few reads as possible.
    assert len(names_of(plain)) == 1
    assert names_of([]) == []


@given(POSITIONS)
def test_a_position_is_read_as_it_was_written(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert read_offsets(json.loads(json.dumps(write_offsets({"t": position})))) == {"t": position}


@given(POSITIONS)
def test_nothing_lies_between_a_message_and_the_place_before_it(position: Position) -> None:
    before = position.before()
    assert before < position
    if position.batch > 0:
        assert (before.entry_key, before.batch) == (position.entry_key, position.batch - 1)
    else:
        assert before == Position(position.ledger, position.entry - 1)


def test_an_entry_before_the_first_one_is_the_beginning_of_its_ledger() -> None:
    """Pulsar gives such an id for the last message of an empty ledger."""
    listed = list(pulsar.MessageId(-1, 5, -1, -1).serialize())
    (first,) = parse_offsets("startingOffsets", json.dumps({"t": listed})).values()  # type: ignore[union-attr]
    assert isinstance(first, Position)
    before = first.before()
    assert before == Position(5, -1)
    # A stream goes on from there.
    assert read_offsets(write_offsets({"t": before})) == {"t": before}


@pytest.mark.parametrize("place", [f"{1 << 63}:0", f"0:{1 << 63}", f"{1 << 64}:5", f"5:6:{1 << 31}"])
def test_a_number_that_no_position_has_is_refused_by_the_name_of_the_topic(place: str) -> None:
    """Such a number would be cut to 64 bits, and name another message."""
    with pytest.raises(OptionError, match=rf"endingOffsets of 't': '{place}' is no position: ids are at most "):
        parse_offsets("endingOffsets", json.dumps({"t": place}))


@pytest.mark.parametrize("text", ["earliest", "Latest", " EARLIEST\n"])
def test_an_edge_is_known_however_it_is_written(text: str) -> None:
    assert parse_offsets("startingOffsets", text) == text.strip().lower()


@given(POSITIONS, POSITIONS)
def test_positions_are_ordered_as_the_topic_is(one: Position, other: Position) -> None:
    if one.entry_key != other.entry_key:
        assert (one < other) == (one.entry_key < other.entry_key)
    elif one.batch >= 0:
        assert (one < other) == (other.batch > one.batch or other.batch == -1)


@given(POSITIONS, st.booleans())
def test_the_bytes_of_a_message_id_are_an_offset_whether_signed_or_not(position: Position, signed: bool) -> None:
    data = pulsar.MessageId(-1, position.ledger, position.entry, position.batch).serialize()
    listed = [each - 256 if signed and each > 127 else each for each in data]
    assert parse_offsets("startingOffsets", json.dumps({"t": listed})) == {"t": position}


@pytest.mark.parametrize(
    ("edge", "message_id"), [("earliest", pulsar.MessageId.earliest), ("latest", pulsar.MessageId.latest)]
)
def test_the_edges_are_offsets_by_name_and_by_message_id(edge: str, message_id: Any) -> None:
    text = json.dumps({"a": edge, "b": list(message_id.serialize())})
    assert parse_offsets("startingOffsets", text) == {"a": edge, "b": edge}


@given(
    st.text(max_size=30)
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps)
)
def test_any_text_is_an_offset_or_is_refused_by_the_name_of_the_option(text: str) -> None:
    try:
        found = parse_offsets("endingOffsets", text)
    except OptionError as error:
        refused = str(error)
    else:
        assert found in ("earliest", "latest") or isinstance(found, dict)
        return
    assert refused.startswith("endingOffsets")


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(-300, 300), max_size=20), min_size=1))
def test_any_list_of_numbers_is_a_message_id_or_is_refused_by_the_name_of_the_topic(
    offsets: dict[str, list[int]],
) -> None:
    try:
        found = parse_offsets("startingOffsets", json.dumps(offsets))
    except OptionError as error:
        refused = str(error)
    else:
        assert isinstance(found, dict)
        assert found.keys() == offsets.keys()
        return
    assert any(repr(topic) in refused for topic in offsets)


def _as_java(message_id: pulsar.MessageId) -> list[int]:
    return [each - 256 if each > 127 else each for each in message_id.serialize()]


@given(POSITIONS, st.integers(-1, 100))
def test_an_offset_of_pulsar_spark_is_the_last_message_that_was_read(position: Position, partition: int) -> None:
    message_id = pulsar.MessageId(partition, position.ledger, position.entry, position.batch)
    stored = {"t": _as_java(message_id), "u": _as_java(pulsar.MessageId.earliest)}
    assert read_offsets(stored) == {"t": position, "u": BEGINNING}
    assert is_of_pulsar_spark(stored)
    assert not is_of_pulsar_spark(write_offsets(read_offsets(stored)))


def test_an_offset_of_pulsar_spark_as_it_wrote_one() -> None:
    words = "persistent://public/default/words-partition-"
    stored = {
        f"{words}0": [8, -127, -128, -128, -128, -128, -64, -123, 14, 16, 9, 24, 0],
        f"{words}1": [8, -126, -128, -128, -128, -128, -64, -123, 14, 16, 10, 24, 1],
        f"{words}2": [8, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 16, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1],
    }
    first = 7905488603709440
    read = read_offsets(stored)
    assert read == {f"{words}0": Position(first + 1, 9), f"{words}1": Position(first + 2, 10), f"{words}2": BEGINNING}


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.integers(-300, 300) | st.none(), max_size=20),
        min_size=1,
    )
)
def test_any_kept_offset_is_positions_or_is_refused(stored: dict[str, object]) -> None:
    try:
        found = read_offsets(stored)
    except OptionError as error:
        refused = str(error)
    else:
        assert found.keys() == stored.keys()
        assert all(isinstance(each, Position) for each in found.values())
        return
    assert refused.startswith("the checkpoint's offset")


def test_the_end_of_a_topic_is_no_offset_to_go_on_from() -> None:
    with pytest.raises(OptionError, match="that of 't' is the end of the topic"):
        read_offsets({"t": _as_java(pulsar.MessageId.latest)})


def test_times_are_milliseconds_for_all_topics_or_for_each() -> None:
    assert parse_times("startingTime", "1700000000000") == 1_700_000_000_000
    assert parse_times("startingTime", '{"a": 1, "b": 2}') == {"a": 1, "b": 2}
    for wrong in ("soon", "{}", "[]", '{"a": "1"}', '{"a": true}', '{"a": -1}', "-1"):
        with pytest.raises(OptionError, match="startingTime"):
            parse_times("startingTime", wrong)


def test_the_defaults_are_those_of_the_scala_connector() -> None:
    options = read_options(TOPIC, streaming=False)
    assert options.topics == ("persistent://public/default/t",)
    assert (options.starting, options.ending) == (None, "latest")
    assert options.fail_on_data_loss
    assert not options.raw_values
    assert options.poll_timeout_ms == 120_000
    assert not options.wait_for_topic


def test_names_are_understood_in_any_case_and_settings_reach_the_client_by_its_names() -> None:
    given_ = {
        "SERVICE.URL": "pulsar://h:1",
        "admin.url": "http://h:2/",
        "TOPICS": "a, tenant/ns/b,a",
        "failondataloss": "False",
        "pulsar.client.authpluginclassname": "x.AuthenticationToken",
        "pulsar.client.authParams": "token:s",
        "pulsar.client.operationTimeoutMs": "1500",
        "pulsar.reader.receiverQueueSize": "7",
        "pulsar.admin.authParams": "token:other",
        "subscriptionPrefix": "spark",
    }
    options = read_options(given_, streaming=True)
    assert options.topics == ("persistent://public/default/a", "persistent://tenant/ns/b")
    assert not options.fail_on_data_loss
    assert options.connection.admin_url == "http://h:2"
    assert options.connection.client["operation_timeout_seconds"] == 2
    assert options.connection.client["auth_params"] == "token:s"
    assert options.connection.admin == {"auth_plugin": "x.AuthenticationToken", "auth_params": "token:other"}
    assert options.reader == {"receiver_queue_size": 7, "subscription_role_prefix": "spark"}


#: The option sets of the examples in the README of pulsar-spark that read; it writes the last name in small letters.
_TOKEN = {"authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationToken", "authParams": "token:t"}
_CLIENT_TOKEN = {f"pulsar.client.{name}": value for name, value in _TOKEN.items()}
_ADMIN_TOKEN = {f"pulsar.admin.{name}": value for name, value in _TOKEN.items()}
_PATTERN = {**URL, "admin.url": "http://localhost:8080", "topicsPattern": "topic.*"}
_IDS = json.dumps({"topic1": [8, 11, 16, 101, 24, 1, 32, 1], "topic2": [8, 15, 16, 105, 24, 5, 32, 5]})
SCALA_READS: list[dict[str, str]] = [
    {**URL, "topic": "topic1"},
    {**URL, "topics": "topic1,topic2"},
    _PATTERN,
    {**URL, "topics": "topic1,topic2", "startingOffsets": _IDS, "endingOffsets": _IDS},
    {**_PATTERN, "startingOffsets": "earliest", "endingOffsets": "latest"},
    {**_PATTERN, **_CLIENT_TOKEN},
    {
        **_PATTERN,
        **_ADMIN_TOKEN,
        **_CLIENT_TOKEN,
        "service.url": "pulsar+ssl://localhost:6651",
        "pulsar.client.tlsTrustCertsFilePath": "/path/to/tls/cert/cert.pem",
        "pulsar.client.tlsAllowInsecureConnection": "false",
        "pulsar.client.tlsHostnameVerificationenable": "true",
    },
    {
        **URL,
        "topic": "topic1",
        "pulsar.reader.subscriptionName": "name",
        "pulsar.admin.tlsAllowInsecureConnection": "false",
    },
]


@pytest.mark.parametrize("options", SCALA_READS)
def test_the_reads_of_the_scala_connectors_readme_are_understood(options: dict[str, str]) -> None:
    found = read_options(options, streaming=False)
    assert found.topics or found.pattern
    if "pulsar.client.tlsHostnameVerificationenable" in options:
        assert found.connection.client["tls_validate_hostname"] is True
    # None of its settings reaches the client under a name that it does not have.
    assert "subscriptionName" not in found.reader


@pytest.mark.parametrize("topic", [{}, {"topic": "topic1"}])
def test_the_writes_of_the_scala_connectors_readme_are_understood(topic: dict[str, str]) -> None:
    found = write_options({**URL, **topic, "pulsar.producer.blockIfQueueFull": "true"})
    assert found.sending == SendSettings()
    assert found.topic == (full_name("topic1") if topic else None)


def test_a_setting_without_effect_is_named_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    read_options({**TOPIC, "PULSAR.reader.subscriptionname": "n"}, streaming=True)
    write_options({**TOPIC, "pulsar.producer.blockIfQueueFull": "false", "pulsar.client.numListenerThreads": "2"})
    assert [text.partition(":")[0] for text in caplog.messages] == [
        "option pulsar.reader.subscriptionName has no effect",
        "option pulsar.producer.blockIfQueueFull has no effect",
        "option pulsar.client.numListenerThreads has no effect",
    ]
    # A setting of the other direction is still refused.
    with pytest.raises(OptionError, match="is not known here"):
        write_options({**TOPIC, "pulsar.reader.subscriptionName": "n"})


def test_settings_that_the_client_has_by_another_name_reach_it() -> None:
    reading = read_options({**TOPIC, "pulsar.reader.subscriptionRolePrefix": "spark"}, streaming=True)
    assert reading.reader == {"subscription_role_prefix": "spark"}
    writing = write_options({**TOPIC, "pulsar.producer.maxPendingMessagesAcrossPartitions": "9"})
    assert writing.sending == SendSettings(max_pending_messages_across_partitions=9)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"topic": "t"}, "service.url: is missing"),
        (
            {**TOPIC, "service.url": "localhost:6650"},
            "service.url: 'localhost:6650' is not an address such as pulsar://",
        ),
        ({**TOPIC, "service.url": "http://h:8080"}, "service.url: 'http://h:8080' is not an address such as pulsar://"),
        ({**TOPIC, "admin.url": "h:8080"}, "admin.url: 'h:8080' is not an address such as http://localhost:8080"),
        ({**TOPIC, "admin.url": "pulsar://h"}, "admin.url: 'pulsar://h' is not an address such as http://"),
        ({**TOPIC, "provider": "pulsar", "option.topic": "t"}, "create a temporary view"),
        (URL, "exactly one of topic, topics and topicsPattern"),
        ({**TOPIC, "topics": "u"}, "not topic and topics"),
        ({**TOPIC, "startingOffset": "earliest"}, "'startingOffset' is not known here; is it 'startingOffsets'?"),
        ({**TOPIC, "pulsar.client.nothing": "1"}, "'pulsar.client.nothing' is not known"),
        ({**TOPIC, "pulsar.producer.producerName": "p"}, "'pulsar.producer.producerName' is not known"),
        (
            {**TOPIC, "startingOffsets": "begin"},
            '\'begin\' cannot be understood; valid: earliest, latest, or JSON per topic such as {"orders": "12:5"}',
        ),
        (
            {**TOPIC, "startingTime": "noon"},
            "'noon' cannot be understood; valid: milliseconds since 1970, or JSON per topic",
        ),
        (
            {**TOPIC, "pulsar.client.authParams": "token:x"},
            "pulsar.client.authParams: needs pulsar.client.authPluginClassName, too, such as org.apache.pulsar.client",
        ),
        (
            {**TOPIC, "pulsar.client.authPluginClassName": "Token"},
            "pulsar.client.authPluginClassName: 'Token' is not known here; valid: AuthenticationToken, Authentication",
        ),
        (
            {**TOPIC, "pulsar.admin.authParams": "token:x"},
            "pulsar.admin.authParams: needs pulsar.admin.authPluginClass",
        ),
        ({**TOPIC, "failOnDataLoss": "yes"}, "failOnDataLoss: 'yes' is neither true nor false"),
        ({**TOPIC, "pollTimeoutMs": "0"}, "pollTimeoutMs: '0' is not a whole number above zero"),
        ({**TOPIC, "startingOffsets": "latest"}, "'latest' is for streams"),
        ({**TOPIC, "endingOffsets": "earliest"}, "'earliest' would read nothing"),
        ({**TOPIC, "startingOffsets": "earliest", "startingTime": "1"}, "startingOffsets and startingTime"),
        ({**TOPIC, "maxBytesPerTrigger": "9"}, "maxBytesPerTrigger: needs admin.url"),
        ({**TOPIC, "maxOffsetsPerTrigger": "9"}, "maxOffsetsPerTrigger: needs admin.url"),
        (
            {**TOPIC, "admin.url": "http://h", "maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "9"},
            "maxBytesPerTrigger and maxOffsetsPerTrigger: only one",
        ),
        ({**TOPIC, "includeHeaders": "yes"}, "includeHeaders: 'yes' is neither true nor false"),
        ({**URL, "topicsPattern": "a.*"}, "topicsPattern: needs admin.url"),
        ({**URL, "topicsPattern": "a(", "admin.url": "http://h"}, "is not a regular expression"),
        ({**URL, "topic": "a/b"}, "topic: 'a/b' is not the name of a topic"),
        ({**URL, "topics": "a,,b"}, "topics: '' is not the name of a topic"),
        ({**TOPIC, "startingOffsets": '{"a/b": "earliest"}'}, "startingOffsets: 'a/b' is not the name of a topic"),
        (
            {**TOPIC, "endingTime": '{"t": 5, "persistent://public/default/t": 6}'},
            "endingTime: one topic has several values",
        ),
        ({**URL, "topic": "non-persistent://a/b/c"}, "is not stored"),
        ({**TOPIC, "predefinedSubscription": " "}, "predefinedSubscription: is empty"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(options: dict[str, str], output: str) -> None:
    with pytest.raises(OptionError) as refused:
        read_options(options, streaming=False)
    assert output in str(refused.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(OptionError, match="endingTime: a stream has no end"):
        read_options({**TOPIC, "endingTime": "5"}, streaming=True)


def test_a_message_in_chunks_has_no_producer_name() -> None:
    assert write_options({**URL, "pulsar.producer.producerName": "p"}).producer_name == "p"
    with pytest.raises(OptionError, match=r"chunkingEnabled: cannot be combined with producerName"):
        write_options({**URL, "pulsar.producer.producerName": "p", "pulsar.producer.chunkingEnabled": "true"})


def test_the_settings_of_a_producer_are_understood_by_javas_names() -> None:
    given = {
        "sendTimeoutMs": "1",
        "maxPendingMessages": "2",
        "batchingEnabled": "false",
        "batchingMaxMessages": "3",
        "batchingMaxBytes": "4",
        "batchingMaxPublishDelayMicros": "5",
        "chunkingEnabled": "true",
        "compressionType": "zlib",
    }
    found = write_options({**URL, **{f"pulsar.producer.{name}": value for name, value in given.items()}})
    assert found.sending == SendSettings(1, 2, None, False, 3, 4, 5, True, wire.ZLIB)
    with pytest.raises(OptionError, match=r"compressionType: 'GZIP' is none of NONE, LZ4, ZLIB, ZSTD, SNAPPY"):
        write_options({**URL, "pulsar.producer.compressionType": "GZIP"})


@pytest.mark.parametrize(
    ("one", "all_of_them", "most"), [(None, None, None), (5, None, 5), (None, 9, 3), (2, 9, 2), (5, 1, 1)]
)
def test_the_limit_of_pending_messages_is_the_lower_one(
    one: int | None, all_of_them: int | None, most: int | None
) -> None:
    settings = SendSettings(max_pending_messages=one, max_pending_messages_across_partitions=all_of_them)
    assert settings.pending_of_partition(3) == most
    with pytest.raises(OptionError, match="'startingOffsets' is not known here"):
        write_options({**TOPIC, "startingOffsets": "earliest"})


def test_credentials_that_cannot_be_understood_are_refused_without_being_repeated(tmp_path: Path) -> None:
    for params in ("me:secret", "[]", '{"user": "me", "password": "secret"}', ""):
        basic = {"auth_plugin": "x.AuthenticationBasic", "auth_params": params}
        with pytest.raises(OptionError, match=r"pulsar.admin.authParams: AuthenticationBasic needs") as refused:
            ask_admin(Connection("pulsar://h", "http://h", {}, basic), "tenants")
        assert "secret" not in str(refused.value)
    (tmp_path / "token").write_bytes(b"\xff")
    for name in ("token", "not-there"):
        with pytest.raises(OptionError, match="the token's file cannot be read"):
            auth_token(f"file:{tmp_path / name}")


@pytest.mark.parametrize("name", ["userId", "username"])
def test_a_user_is_named_as_in_java_or_in_cpp(name: str) -> None:
    assert basic_user("authParams", f'{{"{name}": "me", "password": "a:secret"}}') == "me:a:secret"


def test_without_the_address_of_the_rest_api_it_is_the_address_that_is_missing() -> None:
    with pytest.raises(OptionError, match=r"admin.url \(--admin-url\): is missing"):
        ask_admin(Connection("pulsar://h", None, {}, {}), "tenants")


@pytest.mark.parametrize("url", ["localhost", "localhost:8080", "pulsar://localhost:6650", "http://", "http:///x"])
def test_an_address_of_the_rest_api_that_is_none_is_named(url: str) -> None:
    with pytest.raises(OptionError, match=rf"admin.url \(--admin-url\): '{url}' is not an address such as http://"):
        ask_admin(Connection("pulsar://h", url, {}, {}), "tenants")


@given(st.text(max_size=30))
def test_a_name_is_a_whole_topic_or_is_refused(text: str) -> None:
    try:
        name = full_name(text)
    except OptionError:
        return
    assert name.startswith("persistent://")
    assert full_name(name) == name


@given(
    st.integers(0, 3),
    st.integers(-1, 500),
    st.integers(0, 3),
    st.integers(0, 500),
    st.integers(-1, 9),
    st.integers(1, 100),
)
def test_the_parts_of_a_range_are_the_whole_in_order_and_none_is_too_large(
    ledger: int, entry: int, further: int, last: int, batch: int, most: int
) -> None:
    start, end = Position(ledger, entry), Position(ledger + further, last, batch)
    if not start < end:
        return
    parts = cut(Range("t", start, end), most)
    _check_parts(parts, start, end)
    assert all(part.end.entry - part.start.entry <= most for part in parts if part.start.ledger == part.end.ledger)


def _check_parts(parts: list[Range], start: Position, end: Position) -> None:
    assert (parts[0].start, parts[-1].end) == (start, end)
    assert all(one.end == other.start for one, other in itertools.pairwise(parts))
    assert all(part.start < part.end for part in parts)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 50), st.data())
def test_with_its_ledgers_a_range_is_cut_within_each_of_them(shape: list[int], most: int, data: st.DataObject) -> None:
    places = [(number, entry) for number, entries in enumerate(shape, 3) for entry in range(entries)]
    if not places:
        return
    first = data.draw(st.integers(-1, len(places) - 2))
    last = data.draw(st.integers(first + 1, len(places) - 1))
    start = Position(*places[first]) if first >= 0 else BEGINNING
    end = Position(*places[last], data.draw(st.integers(-1, 3)))

    def parts_of(deleted: int) -> list[Range]:
        """Cut it when so many of the first entries are deleted."""
        kept = places[deleted:]
        ledgers = []
        for number, entries in enumerate(shape, 3):
            stored = sum(ledger == number for ledger, _ in kept)
            ledgers.append(Ledger(number, stored, 0, entries - stored))
        return cut(Range("t", start, end, within(ledgers, start, end)), most)

    parts = parts_of(0)
    _check_parts(parts, start, end)
    held = [sum(part.start.entry_key < place <= part.end.entry_key for place in places) for part in parts]
    assert all(count == most for count in held[:-1])
    assert 0 < held[-1] <= most
    assert [part.entries for part in parts] == held
    # Entries that were read before do not change it when they are deleted.
    again = parts_of(data.draw(st.integers(0, first + 1)))
    assert [(part.start, part.end) for part in again] == [(part.start, part.end) for part in parts]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=5), st.integers(1, 80), st.integers(1, 80))
@example([10], 6, 100)
def test_ranges_are_cut_into_as_many_parts_as_are_asked_for(sizes: list[int], asked: int, most: int) -> None:
    whole = [Range(str(size), BEGINNING, Position(3, size - 1), (Ledger(3, size, 0),)) for size in sizes]
    of_part = entries_of_part(whole, asked, most)
    parts = [part for each in whole for part in cut(each, of_part)]
    assert len(parts) >= min(asked, sum(sizes))
    assert all(part.entries <= most for part in parts)
    # Nor are there many more.
    assert of_part >= max(1, min(most, sum(sizes) // asked))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2000)), min_size=1, max_size=4), st.integers(1, 50_000))
def test_a_trigger_goes_on_by_an_entry_at_least_and_by_its_bytes_at_most(
    shape: list[tuple[int, int]], most: int
) -> None:
    ledgers = [Ledger(number, entries, entries * size) for number, (entries, size) in enumerate(shape, 3)]
    start, whole_end = BEGINNING, Position(ledgers[-1].id, ledgers[-1].entries - 1, 4)
    taken = rounds = 0
    while start < whole_end:
        end = within_bytes([Range("t", start, whole_end, within(ledgers, start, whole_end))], most)["t"]
        assert start < end <= whole_end
        passed = [(n, e) for n, (count, _) in enumerate(shape, 3) for e in range(count)]
        passed = [place for place in passed if start.entry_key < place <= end.entry_key]
        held = sum(shape[number - 3][1] for number, _ in passed)
        assert held <= most or len(passed) == 1
        taken, rounds, start = taken + len(passed), rounds + 1, end
    assert taken == sum(entries for entries, _ in shape)
    assert rounds <= taken


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=3), min_size=1, max_size=4
    ),
    st.integers(1, 60),
)
def test_a_trigger_takes_so_many_entries_of_all_partitions_in_proportion_and_one_of_each_at_least(
    shapes: list[list[tuple[int, int]]], most: int
) -> None:
    ledgers = {
        f"t{number}": [Ledger(id_, entries, 1, deleted) for id_, (entries, deleted) in enumerate(shape, 3)]
        for number, shape in enumerate(shapes)
    }
    ranges = [
        Range(topic, BEGINNING, end, within(stored, BEGINNING, end))
        for topic, stored in ledgers.items()
        for end in [Position(stored[-1].id, stored[-1].end - 1, 4)]
    ]
    whole = {topic: sum(ledger.entries for ledger in stored) for topic, stored in ledgers.items()}
    ends = within_entries(ranges, most)
    taken = {
        topic: sum(
            (ledger.id, entry) <= ends[topic].entry_key
            for ledger in stored
            for entry in range(ledger.first, ledger.end)
        )
        for topic, stored in ledgers.items()
    }
    if sum(whole.values()) <= most:
        assert ends == {each.topic: each.end for each in ranges}
        return
    for topic, count in taken.items():
        share = most * whole[topic] / sum(whole.values())
        assert max(1, share - 1) - 1e-9 <= count <= max(1, share) + 1e-9


@pytest.mark.parametrize("params", ["token:abc.def\n", " abc.def", '{"token": "abc.def\\n"}'])
def test_a_token_may_have_a_line_break_after_it(params: str) -> None:
    assert auth_token(params) == "abc.def"


@pytest.mark.parametrize("token", ["abc\ndef", "abc def", "abc\tdef", "abc\x7f", "ab\u00e4c"])
def test_a_token_that_none_is_refused_without_it(token: str) -> None:
    """The header of a request would be refused by its value."""
    settings = {"auth_plugin": "AuthenticationToken", "auth_params": f"token:{token}"}
    connection = Connection("pulsar://localhost:6650", "http://127.0.0.1:1", settings, settings)
    with pytest.raises(OptionError, match=r"authParams: the token has spaces, line breaks or other char") as refused:
        ask_admin(connection, "clusters")
    assert token not in str(refused.value)
