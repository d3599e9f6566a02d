"""The numbers of messages without Spark and without a broker: what was stored, and what is refused."""

from __future__ import annotations

import pytest
from heliograph_spark.plan.errors import PulsarSourceError
from heliograph_spark.plan.numbering import ROWS_PER_BATCH, UNUSED, Numbering
from hypothesis import given
from hypothesis import strategies as st

BATCHES = st.integers(0, 1 << 30)
ROWS = st.integers(1, ROWS_PER_BATCH)


def of(batch: int, query: str = "query", task: int = 0) -> Numbering:
    return Numbering.of_batch("etl", query, task, batch)


@given(BATCHES, BATCHES, ROWS)
def test_what_is_stored_of_a_batch_follows_from_the_last_number(sent: int, batch: int, rows: int) -> None:
    last = of(sent).before + rows
    assert 0 <= last < 1 << 63
    if sent > batch:
        with pytest.raises(PulsarSourceError, match=f"has had micro-batch {sent}, and this is {batch}, so it would"):
            of(batch).stored("t", last)
    else:
        assert of(batch).stored("t", last) == (rows if sent == batch else 0)


@given(BATCHES)
def test_nothing_is_stored_under_a_name_that_was_not_used(batch: int) -> None:
    assert of(batch).stored("t", UNUSED) == 0


def test_no_two_queries_or_tasks_have_one_name() -> None:
    assert len({of(0, query, task).name for query in ("a", "b") for task in (0, 1)}) == 4


@given(BATCHES, BATCHES, ROWS)
def test_a_batch_that_an_earlier_release_began_is_refused(sent: int, batch: int, rows: int) -> None:
    last = of(sent).before + rows
    if sent == batch:
        with pytest.raises(PulsarSourceError, match=f"micro-batch {batch} was sent under the producer name etl-0 by"):
            of(batch).check_earlier("t", last)
    else:
        of(batch).check_earlier("t", last)
        of(batch).check_earlier("t", UNUSED)


def test_a_repetition_with_fewer_rows_than_are_stored_is_refused() -> None:
    of(1).check_repeat("t", 5, 5)
    with pytest.raises(PulsarSourceError, match=r"the broker has 5 rows of this micro-batch .* its repetition has 4"):
        of(1).check_repeat("t", 5, 4)
