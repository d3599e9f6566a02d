"""Random histories of topics of an Apache Pulsar, where it has been fetched, are read as those of a Heliograph are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.real_pulsar import missing, real_pulsar

from .histories import history
from .histories.defects import put_back
from .histories.history import Topics
from .histories.pulsar_topic import SETTINGS, PulsarTopic
from .test_histories import FOUND

#: Always the same seeds; scripts/reading-histories --against pulsar runs others.
SEEDS = (0, 4, 6, 8, 15)

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    with real_pulsar(tmp_path_factory.mktemp("pulsar"), *SETTINGS) as running:
        yield partial(PulsarTopic, running)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_read_once_or_missed_by_name(topics: Topics, seed: int) -> None:
    result = history.run(topics, seed)
    again = f"scripts/reading-histories --against pulsar --seed {seed}"
    assert result.violation is None, "\n".join([*result.lines, again])


@pytest.mark.parametrize("defect", FOUND)
def test_a_defect_is_found_by_its_seed(topics: Topics, defect: str) -> None:
    with put_back(defect):
        assert history.run(topics, FOUND[defect]).violation is not None
    without = history.run(topics, FOUND[defect])
    assert without.violation is None, "\n".join(without.lines)
