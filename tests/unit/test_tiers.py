"""Plans of test runs: the parts and their order, those that there is time for, and those that are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.tiers import (
    ARCHIVES,
    ARCHIVES_S,
    BESIDE_OTHERS,
    DEFAULT,
    E2E_S,
    FUZZ_S,
    LONG,
    LONG_S,
    LONG_SPARK_S,
    OPERATOR_S,
    SHORT,
    SHORT_SPARK_S,
    SPARK_S,
    TIERS,
    WHOLE_CLUSTER,
    Budget,
    Outcome,
    Part,
    Request,
    WrongUsage,
    parse,
    plan,
)

EVERYTHING = Request(TIERS)


class Seconds:
    """A clock that stands still until a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_name_the_default_tiers_are_meant() -> None:
    assert parse([]) == parse(["--"]) == Request(DEFAULT)


def test_tiers_are_put_in_order_and_named_once() -> None:
    assert parse(["spark", "unit", "spark"]).tiers == ("unit", "spark")


def test_e2e_includes_operator() -> None:
    assert parse(["e2e"]).tiers == ("operator", "e2e")
    assert parse(["operator"]).tiers == ("operator",)


def test_pytest_gets_what_follows_the_dashes_as_it_is() -> None:
    request = parse(["faults", "--", "-k", "unit", "--", "x"])
    assert request == Request(("faults",), ("-k", "unit", "--", "x"))


@pytest.mark.parametrize("wrong", ["units", "-k", "--fast"])
def test_a_tier_that_does_not_exist_is_refused_with_those_that_do(wrong: str) -> None:
    with pytest.raises(WrongUsage, match=f"no tier '{wrong}'; valid: unit property .* spark"):
        parse(["unit", wrong])


def test_the_default_tiers_are_shared_and_what_measures_itself_is_alone_afterwards() -> None:
    together, alone = plan(Request(DEFAULT), building=False)
    assert set(together.tiers) == set(DEFAULT)
    assert (together.marker, together.shared) == ("not alone", True)
    assert alone == Part(("integration", "faults"), "alone")


def test_arguments_for_pytest_mean_one_process_in_the_usual_order() -> None:
    assert plan(Request(DEFAULT, ("-k", "x")), building=False) == [Part(DEFAULT)]


def test_what_has_an_environment_of_its_own_is_a_part_and_last() -> None:
    spark, fuzz = plan(Request(("unit", "spark", "fuzz")), building=False)[-2:]
    assert spark == Part(("spark",), shared=True, needs_s=SPARK_S)
    assert fuzz == Part(("fuzz",), shared=True, needs_s=FUZZ_S)


def test_beside_a_build_runs_what_needs_it_not_and_unit_before_what_may_take_the_time_left() -> None:
    beside, *after = plan(EVERYTHING, building=True)
    assert beside.tiers == ("faults", "integration", "simulation", "property")
    assert beside.marker == f"not alone and {SHORT}"
    assert not beside.after_build
    assert not beside.on_kubernetes
    assert [(part.tiers, part.marker) for part in after] == [
        (("unit",), ""),
        (("spark",), SHORT),
        (("fuzz",), ""),
        (("integration", "faults"), "alone"),
        (("e2e", "operator"), BESIDE_OTHERS),
        (("e2e",), WHOLE_CLUSTER),
        (("e2e",), ARCHIVES),
        (("faults", "integration"), LONG),
        (("spark",), LONG),
    ]
    needs = [0, SHORT_SPARK_S, FUZZ_S, 0, OPERATOR_S, E2E_S, ARCHIVES_S, LONG_S, LONG_SPARK_S]
    assert [part.needs_s for part in after] == needs
    assert [part.after_build for part in after if part.tiers == ("unit",) or part.marker == "alone"] == [True, True]
    assert [part.on_kubernetes for part in after] == [False] * 4 + [True] * 3 + [False] * 2
    assert [part.shared for part in after] == [True, True, True, False, True, False, False, True, True]


def test_without_a_cluster_nothing_runs_on_one() -> None:
    assert not any(part.on_kubernetes for part in plan(EVERYTHING, building=False))


@pytest.mark.parametrize("building", [False, True])
@pytest.mark.parametrize("arguments", [(), ("-x",)])
@pytest.mark.parametrize("tiers", [DEFAULT, TIERS, ("unit",), ("integration", "operator"), ("operator", "e2e")])
def test_every_test_of_a_tier_is_in_exactly_one_part(
    tiers: tuple[str, ...], arguments: tuple[str, ...], building: bool
) -> None:
    markers: dict[str, list[str]] = {tier: [] for tier in tiers}
    for part in plan(Request(tiers, arguments), building=building):
        assert part.tiers
        for tier in part.tiers:
            markers[tier].append(part.marker)
    short = f"not alone and {SHORT}"
    # Marked tests are in tiers whose both halves run; where one half is left out, no test of the tier has the mark.
    whole = {
        "unit": [[""], ["not alone"]],
        "property": [[short]] if building else [[""], ["not alone"]],
        "simulation": [[short]] if building else [[""], ["not alone"]],
        "integration": [[short, "alone", LONG]] if building else [[""], ["not alone", "alone"]],
        "faults": [[short, "alone", LONG]] if building else [[""], ["not alone", "alone"]],
        "operator": [[BESIDE_OTHERS]] if building else [[]],
        "e2e": [[BESIDE_OTHERS, WHOLE_CLUSTER, ARCHIVES]] if building else [[]],
        "spark": [[SHORT, LONG]] if building else [[""]],
        "fuzz": [[""]],
    }
    assert all(markers[tier] in whole[tier] for tier in tiers), markers


@pytest.mark.parametrize("tier", sorted(set(TIERS) - {"faults", "integration", "spark"}))
def test_tests_are_marked_long_only_where_those_have_a_part(tier: str) -> None:
    files = [*(Path(__file__).parents[1] / tier).rglob("test_*.py")]
    assert files
    # Written so that it does not find itself.
    assert [file.name for file in files if f"mark.{LONG}" in file.read_text()] == []


def test_a_part_needs_the_time_it_may_take() -> None:
    clock = Seconds()
    budget = Budget(4500, clock)
    part = Part(("spark",), needs_s=1800)
    clock.now = 2700.9
    assert budget.lack(part) == ""
    clock.now = 2701.0
    assert budget.lack(part) == "1799 s are left of 4500, and it may need 1800"
    assert budget.lack(Part(("unit",))) == ""


def test_without_a_limit_there_is_always_time() -> None:
    clock = Seconds()
    budget = Budget(None, clock)
    clock.now = 1e9
    assert budget.lack(Part(("spark",), needs_s=1800)) == ""


def test_what_was_not_asked_for_is_named_with_how_to_ask() -> None:
    outcome = Outcome(parse(["unit", "property", "simulation", "integration", "e2e", "spark", "fuzz"]))
    assert outcome.notes == ["tier not run: faults (not asked for: scripts/test faults)"]


def test_each_tier_of_a_part_that_is_left_out_is_named() -> None:
    outcome = Outcome(EVERYTHING)
    outcome.leave_out(Part(("operator", "e2e"), BESIDE_OTHERS), "no root")
    outcome.leave_out(Part(("e2e",), WHOLE_CLUSTER), "too late")
    outcome.leave_out(Part(("e2e",), ARCHIVES), "no time")
    outcome.leave_out(Part(("integration", "faults"), "alone"), "ended by SIGINT")
    outcome.leave_out(Part(("spark",), LONG), "9 s are left")
    assert outcome.notes == [
        "tier not run: operator (no root)",
        "tier not run: e2e (no root)",
        "not run: the tests of e2e that have the whole Kubernetes (too late)",
        "not run: archives on a Kubernetes (no time)",
        "not run: the tests of integration and faults that are marked alone (ended by SIGINT)",
        "not run: the tests of spark that are marked long (9 s are left)",
    ]


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([0, 5], 0),
        ([5, 5], 5),
        ([], 0),
        ([1, 0], 1),
        ([1, 2, 5], 2),
        ([5, 1], 1),
    ],
)
def test_the_exit_code_is_that_of_what_failed_and_5_only_if_no_test_fits(codes: list[int], code: int) -> None:
    outcome = Outcome(EVERYTHING)
    for each in codes:
        outcome.add(each)
    assert outcome.code == code


def test_what_is_broken_beside_the_tests_fails_the_run() -> None:
    outcome = Outcome(EVERYTHING)
    outcome.add(0)
    outcome.fail()
    assert outcome.code == 1
