"""The reader of YAML and JSON: no guesses, no key twice, every error an answer."""

from __future__ import annotations

import pytest
from heliograph_api.manifests.documents import NotReadable, read_json, read_yaml, write_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("1:30", "1:30"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("-1", -1),
        ("0", 0),
        ("1.5", 1.5),
        ("1e3", "1e3"),
        (".inf", ".inf"),
        ("~", None),
        ("null", None),
        ("'5'", "5"),
        ("10G", "10G"),
    ],
)
def test_plain_scalars(text: str, value: object) -> None:
    found = read_yaml(f"a: {text}\n")
    assert found == [{"a": value}]
    assert isinstance(found[0], dict)
    assert type(found[0]["a"]) is type(value)


def test_merge_keys_and_anchors() -> None:
    assert read_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n") == [{"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: duplicate key 'a'"),
        ("a:\n  b: 1\n  'b': 2\n", "line 3, column 3: duplicate key 'b'"),
        ("? [a]\n: 1\n", "line 1, column 3: a key that is not plain"),
        ("a: *nowhere\n", "line 1, column 4: found undefined alias"),
        ("a: !!int x\n", "not YAML that can be read"),
        ("a: !!int ''\n", "not YAML that can be read"),
        ("a: !!bool x\n", "not YAML that can be read: a value does not fit its tag"),
        ("a: !!timestamp x\n", "not YAML that can be read"),
        ("a: \0", "not YAML: "),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_not_yaml_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(NotReadable) as caught:
        read_yaml(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 2}', "not JSON: duplicate key 'a'"),
        ('{"a": {"b": 1, "b": 1}}', "not JSON: duplicate key 'b'"),
        ('{"a": }', "not JSON: line 1, column 7"),
        ('{"a": NaN}', "NaN is not a number in JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(NotReadable) as caught:
        read_json(text)
    assert words in str(caught.value)


def test_json_may_be_indented_by_tabs() -> None:
    assert read_json('{\n\t"a": [1, true, null]\n}') == [{"a": [1, True, None]}]


def test_what_is_written_reads_back() -> None:
    documents: list[object] = [{"a": ["yes", "1:30", "010", "", "~", "1e3", 5, None, True]}, {"é": "a\nb"}]
    assert read_yaml(write_yaml(documents)) == documents


@pytest.mark.parametrize("line_break", ["\x85", "\u2028", "\u2029"])
def test_line_breaks_of_unicode_are_written_as_they_are(line_break: str) -> None:
    documents: list[object] = [
        {f"a{line_break}b": [line_break, f"a{line_break}", f"{line_break}\nb", f"'a{line_break}"]}
    ]
    assert read_yaml(write_yaml(documents)) == documents
