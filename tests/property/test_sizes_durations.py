"""Sizes and durations: what is written is read back exactly, and nothing but the parsers' own error comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from heliograph_api.values.durations import MAX_DURATION_MS, InvalidDuration, format_duration, parse_duration
from heliograph_api.values.readable import readable_duration, readable_size
from heliograph_api.values.sizes import MAX_SIZE, InvalidSize, format_size, parse_size
from hypothesis import given
from hypothesis import strategies as st

# On a busy machine the time an example takes says nothing.

_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(), lambda inner: st.lists(inner)
)
_LIKE_A_QUANTITY = st.from_regex(r"\A[-+]?[0-9]{0,30}(\.[0-9]{0,12})?\s?[A-Za-zµ]{0,3}\Z")


@given(st.integers(-1, MAX_SIZE))
def test_sizes_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size
    assert parse_size(size) == size


@given(st.integers(-1, MAX_DURATION_MS))
def test_durations_read_back(duration: int) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 2**20), st.sampled_from("KMGT"))
def test_units_of_sizes(number: int, unit: str) -> None:
    expected = number * 1024 ** ("KMGT".index(unit) + 1)
    for text in (f"{number}{unit}", f"{number}{unit.lower()}", f"{number}{unit}i"):
        assert parse_size(text) == expected


@given(st.integers(0, 2**20), st.sampled_from([("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)]))
def test_units_of_durations(number: int, unit: tuple[str, int]) -> None:
    assert parse_duration(f"{number}{unit[0]}") == number * unit[1]


@given(_ANYTHING | _LIKE_A_QUANTITY)
def test_sizes_raise_nothing_else(value: object) -> None:
    outcome = _outcome(lambda: parse_size(value), InvalidSize)
    assert isinstance(outcome, str) or -1 <= outcome <= MAX_SIZE


@given(_ANYTHING | _LIKE_A_QUANTITY)
def test_durations_raise_nothing_else(value: object) -> None:
    outcome = _outcome(lambda: parse_duration(value), InvalidDuration)
    assert isinstance(outcome, str) or -1 <= outcome <= MAX_DURATION_MS


def _outcome(parse: Callable[[], int], refused: type[ValueError]) -> int | str:
    """Return what was parsed, or why not: in a line that says what would be valid."""
    try:
        return parse()
    except refused as error:
        message = str(error)
    assert "; valid: " in message
    assert message.isprintable()
    return message


@given(st.integers(0, MAX_SIZE))
def test_what_is_shown_of_a_size_is_never_more_and_off_by_less_than_a_tenth(size: int) -> None:
    shown = parse_size(readable_size(size))
    assert 0 <= size - shown <= size // 10


@given(st.integers(0, MAX_DURATION_MS))
def test_what_is_shown_of_a_duration_is_never_more_and_off_by_less_than_a_tenth(duration: int) -> None:
    shown = parse_duration(readable_duration(duration))
    assert 0 <= duration - shown <= duration // 10


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10G", 10 * 2**30),
        ("512M", 2**29),
        ("10Gi", 10 * 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1.2Mi", 1_258_291),
        ("7", 7),
        ("0", 0),
        ("-1", -1),
        ("infinite", -1),
        ("0.5k", 512),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "value",
    [
        "",
        "G",
        "10Q",
        "10GB",
        "10 G",
        " 10G",
        "+1",
        "-2",
        "-1G",
        "1.5",
        "1.G",
        ".5G",
        "1,5G",
        "10gI",
        "10i",
        "01",
        "1e3",
        "٣G",
        "Infinite",
        "9" * 5000 + "G",
        "10G\n",
        -2,
        1.5,
        None,
        True,
        [],
        2**63,
    ],
)
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(InvalidSize):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "duration"),
    [
        ("3h", 10_800_000),
        ("7d", 604_800_000),
        ("90s", 90_000),
        ("500ms", 500),
        ("1w", 604_800_000),
        ("1.5h", 5_400_000),
        ("15m", 900_000),
        ("0", 0),
        ("0s", 0),
        ("-1", -1),
        ("infinite", -1),
        (0, 0),
        (-1, -1),
        ("0.0001s", 0),
    ],
)
def test_durations(value: object, duration: int) -> None:
    assert parse_duration(value) == duration


@pytest.mark.parametrize(
    "value",
    ["", "h", "3", 3, "3H", "3 h", "1h30m", "-1h", "03h", "3y", "1.h", "٣h", "3h\n", 0.0, False, None],
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(InvalidDuration):
        parse_duration(value)


def test_a_number_of_thousands_of_digits() -> None:
    # Not a parameter: Python does not write such numbers out, and pytest would in the name of the test.
    with pytest.raises(InvalidSize, match="a number of more than 77 digits is too large a size"):
        parse_size(10**5000)
    with pytest.raises(InvalidDuration, match="a number of more than 77 digits is not a duration"):
        parse_duration(10**5000)
