"""The losses that texts of Spark's exceptions name."""

from __future__ import annotations

import pytest
from heliograph_spark.plan.errors import DataLossError, OptionError, PulsarSourceError
from heliograph_spark.plan.ledgers import Loss as LostEntries
from heliograph_spark.plan.missed import gone_topic
from heliograph_spark.plan.positions import Position
from heliograph_spark.run.quoted_errors import quoted_error
from heliograph_spark.run.stream_failures import Loss, loss_in

TOPIC = "persistent://public/default/t-partition-3"


def quoting(error: Exception) -> str:
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return f"org.apache.spark.SparkException: Traceback (most recent call last):\n  in main\n{name}: {error}\n\tat x.y"


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        (f"{TOPIC}: {LostEntries(Position(3, 1), Position(4, 0), 20)}", 20),
        (f"{TOPIC}: {LostEntries(Position(3, 1), None, 1)}", 1),
        (f"{TOPIC}: 7 of the entries after 3:1 and before 4:0 were deleted while the query read them", 7),
        (f"{TOPIC}: nothing is stored after 3:1, but the query reads up to 3:9", None),
        (gone_topic(TOPIC, "3:4"), None),
    ],
)
def test_a_loss_is_found_with_its_partition_and_number(text: str, entries: int | None) -> None:
    assert loss_in(quoting(DataLossError(text))) == Loss(TOPIC, entries)


@pytest.mark.parametrize("error", [OptionError("topic: is missing"), PulsarSourceError("x"), ValueError("mine")])
def test_other_errors_are_no_loss(error: Exception) -> None:
    assert loss_in(quoting(error)) is None
    assert (quoted_error(quoting(error)) is None) == isinstance(error, ValueError)
