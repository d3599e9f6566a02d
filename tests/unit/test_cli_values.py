"""Values of options of administration commands, and the table of policies they are made from."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from heliograph_broker.cli.base import values as values
from heliograph_broker.cli.policies.policy_flags import Policy
from heliograph_broker.cli.policies.policy_levels import NAMESPACE_POLICIES, SUBSCRIPTION_POLICIES, TOPIC_POLICIES

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (values.size_bytes, "10G", 10 << 30),
        (values.size_bytes, "1048576", 1 << 20),
        (values.size_bytes, "-1", -1),
        (values.size_megabytes, "1T", 1 << 20),
        (values.size_megabytes, "0", 0),
        (values.size_megabytes, "-1", -1),
        (values.time_seconds, "3600", 3600),
        (values.time_seconds, "3h", 10800),
        (values.time_seconds, "-1", -1),
        (values.time_minutes, "3h", 180),
        (values.time_minutes, "120", 2),
        (values.time_minutes, "infinite", -1),
        (values.bare_minutes, "120", 120),
        (values.bare_minutes, "2d", 2880),
        (values.time_milliseconds, "1", 1000),
        (values.time_milliseconds, "250ms", 250),
        (values.topic_name, "orders", "persistent://public/default/orders"),
        (values.topic_name, "", ""),
    ],
)
def test_values_are_read_into_the_units_of_the_rest_api(
    read: Callable[[str, str], Any], text: str, expected: object
) -> None:
    assert read("--option", text) == expected


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (values.size_bytes, "10X", "--option: '10X' is not a size; valid: 10G"),
        (values.size_bytes, "-2", "not a size"),
        (values.size_bytes, "9000000000G", "too large"),
        (values.size_megabytes, "1500K", "whole number of megabytes"),
        (values.time_seconds, "250ms", "whole number of seconds"),
        (values.time_seconds, "soon", "not a duration"),
        (values.time_minutes, "90", "whole number of minutes"),
        (values.message_id, "12", "latest, earliest or LEDGER:ENTRY"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_option_s_name(
    read: Callable[[str, str], Any], text: str, message: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        read("--option", text)
    assert message in refused.value.message
    assert "--option" in refused.value.message


def test_positions_are_pulsar_s_message_ids() -> None:
    assert values.message_id("-m", "12:3") == {"ledgerId": 12, "entryId": 3, "partitionIndex": -1}
    assert values.message_id("-m", "earliest")["ledgerId"] == -1
    assert values.message_id("-m", "latest")["ledgerId"] == 2**63 - 1


@pytest.mark.parametrize(
    "policies",
    [NAMESPACE_POLICIES, TOPIC_POLICIES, SUBSCRIPTION_POLICIES],
    ids=["namespaces", "topics", "subscriptions"],
)
def test_rows_are_told_apart_and_use_each_flag_once(policies: tuple[Policy, ...]) -> None:
    names = [policy.name for policy in policies]
    assert len(set(names)) == len(names)
    for policy in policies:
        flags = [name for flag in policy.flags for name in flag.names]
        assert len(set(flags)) == len(flags), policy.name
        assert not set(flags) & {"-h", "--help", "--http-url", "-ap", "--applied"}, policy.name


def test_the_guide_lists_every_policy() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (the same|–|`[a-z-]+`) \| (.+) \|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert [(name, about) for name, _, about in rows] == [(policy.name, policy.about) for policy in NAMESPACE_POLICIES]
    at_topics = {name if at == "the same" else at.strip("`") for name, at, _ in rows if at != "–"}
    assert at_topics == {policy.name for policy in TOPIC_POLICIES}


def test_no_policy_of_a_subscription_has_the_option_that_names_it() -> None:
    for policy in SUBSCRIPTION_POLICIES:
        assert not {name for flag in policy.flags for name in flag.names} & {"-s", "--subscription"}, policy.name


def test_the_guide_lists_every_policy_of_a_subscription() -> None:
    guide = GUIDE.read_text("utf-8")
    for policy in SUBSCRIPTION_POLICIES:
        assert f"heliograph subscriptions set-{policy.name} " in guide
