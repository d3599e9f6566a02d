"""The broker answers on the wire as Apache Pulsar 4.2.4 does, except where a difference is named with its reason.

The answers of a real one are committed; CONTRIBUTING.md says how to record them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import RunningBroker
from tests.support.wire_questions import commands, lists, messages, positions, schemas
from tests.support.wire_questions.place import QUESTIONS, answers_of

__all__ = ["commands", "lists", "messages", "positions", "schemas"]

ANSWERS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "pulsar_4_2_4_answers.json").read_text())
_LATER_PARTITION = "a topic is not called like a partition of a topic that is not there, which may come later"
#: By question and part of the answer: the reason, and the answer here.
DIFFERENCES: dict[tuple[str, str], tuple[str, Any]] = {
    ("connected", "supports_repl_dedup_by_lid_and_eid"): ("there is no replication to other clusters", [False] * 5),
    ("partitioned_metadata", "to create: missing-partition-0"): (_LATER_PARTITION, "TopicNotFound"),
    ("partitioned_metadata", "unsaid: missing-partition-0"): (_LATER_PARTITION, "TopicNotFound"),
    ("partitioned_metadata_by_policy", "no creation, not to create: a-partition-1"): (
        "all partitions are there as soon as their topic is, not when each is used first",
        0,
    ),
    ("peeks", "schema version"): (
        "the Java client reads the version from a header that Pulsar does not write",
        {
            "body": "x",
            "headers": ANSWERS["peeks"]["schema version"]["headers"]
            | {"X-Pulsar-Base64-schema-version-b64encoded": ["AAAAAAAAAAM="]},
        },
    ),
    ("lookup", "through the service URL"): (
        "the advertised address is one that clients reach, so they need no proxy",
        [False, False, False, None, None],
    ),
}


def test_every_question_was_asked_of_pulsar() -> None:
    assert set(QUESTIONS) == set(ANSWERS)
    assert {(name, part) for name, part in DIFFERENCES if part not in ANSWERS[name]} == set()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_broker_answers_as_pulsar(broker: RunningBroker, name: str) -> None:
    named = {part: answer for (of, part), (_, answer) in DIFFERENCES.items() if of == name}
    assert answers_of(broker.service_url, broker.http_url, name) == {**ANSWERS[name], **named}
