"""Two answers of an admin tool agree if they say the same, in whatever order Java lists the members of an object."""

from __future__ import annotations

import pytest

from tests.support.verb_answers import Answer

ID = '{\n  "ledgerId" : {ledger},\n  "entryId" : 9,\n  "batchIndex" : -1,\n  "batchSize" : 0\n}'


def test_the_order_of_members_makes_no_difference() -> None:
    other = '{\n  "ledgerId" : {ledger},\n  "entryId" : 9,\n  "batchSize" : 0,\n  "batchIndex" : -1\n}'
    assert Answer(0, ID).agrees(Answer(0, other))
    assert Answer(0, f"[{ID}]").agrees(Answer(0, f"[{other}]"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ID, ID.replace("9", "8")),
        (ID, ID.replace("9", '"9"')),
        (ID, ID.replace("9", "9.0")),
        (ID, ID.replace("entryId", "entry")),
        ('{"a" : 1}', '{"a" : true}'),
        ("[1, 2]", "[2, 1]"),
        ("{a", "{b"),
        ("1", "1.0"),
    ],
)
def test_anything_else_does(one: str, other: str) -> None:
    assert not Answer(0, one).agrees(Answer(0, other))


def test_an_exit_code_does() -> None:
    assert not Answer(0, ID).agrees(Answer(1, ID))
    assert Answer(1, "no such topic").agrees(Answer(1, "Topic not found"))
    assert not Answer(1, "x is not a path of this API").agrees(Answer(1, "Topic not found"))
