"""Polling ends with the first true answer, and at the deadline with the last one."""

from __future__ import annotations

import pytest

from tests.support.polling import eventually, eventually_async


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, "", 7, 8])
    assert eventually(lambda: next(answers), every_s=0) == 7
    assert next(answers) == 8


async def test_an_event_loop_goes_on_meanwhile() -> None:
    answers = iter([None, "here"])
    assert await eventually_async(lambda: next(answers), every_s=0) == "here"


def test_the_deadline_names_what_was_waited_for_and_the_last_answer() -> None:
    with pytest.raises(AssertionError, match="not within 0 s: the end; last value: 0"):
        eventually(lambda: 0, within_s=0, what="the end")


def test_only_what_means_not_yet_is_asked_again() -> None:
    def fail() -> bool:
        raise KeyError("gone")

    with pytest.raises(AssertionError, match="last answer: 'gone'"):
        eventually(fail, within_s=0, not_yet=(KeyError,))
    with pytest.raises(KeyError):
        eventually(fail, within_s=0)
