"""Volumes grow and never shrink."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_operator.cluster.cluster_volumes import VolumePlan, plan_volumes
from heliograph_operator.decide.cluster_status import ClusterReason
from heliograph_operator.decide.quantity import bytes_of
from heliograph_operator.decide.volume_growth import growth_of

GI = 1024**3


def stateful_set(size: str) -> dict[str, Any]:
    claim = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": size}}}}
    return {"spec": {"volumeClaimTemplates": [claim]}}


def claim(size: str, name: str = "data-main-0") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}}


@pytest.mark.parametrize(
    ("text", "size"), [("10Gi", 10 * GI), ("1500M", 1_500_000_000), ("2e9", 2 * 10**9), ("0.5Ki", 512), ("7", 7)]
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "10gi", "ten"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        bytes_of(text)


def test_the_first_time_there_is_nothing_to_grow() -> None:
    assert plan_volumes(GI, None, []) == VolumePlan()


def test_the_same_size_in_other_words_changes_nothing() -> None:
    assert plan_volumes(GI, stateful_set("1024Mi"), [claim("1Gi")]) == VolumePlan(stated="1024Mi")


def test_a_larger_size_makes_every_volume_grow_and_the_stateful_set_anew() -> None:
    claims = [claim("1Gi"), claim("2Gi", "data-main-1")]
    assert plan_volumes(2 * GI, stateful_set("1Gi"), claims) == VolumePlan(grow=["data-main-0"], recreate=True)


def test_a_volume_that_grew_before_the_operator_was_ended_is_not_grown_again() -> None:
    assert plan_volumes(2 * GI, stateful_set("1Gi"), [claim("2Gi")]) == VolumePlan(recreate=True)


def test_a_smaller_size_is_refused_and_everything_stays() -> None:
    plan = plan_volumes(GI, stateful_set("2Gi"), [claim("2Gi")])
    assert (plan.grow, plan.stated, plan.recreate) == ([], "2Gi", False)
    assert plan.refused == "spec.storage.size: volume data-main-0 has 2Gi; it cannot shrink; valid: 2Gi or more"


def test_a_smaller_size_is_no_matter_while_there_is_no_volume() -> None:
    assert plan_volumes(GI, stateful_set("2Gi"), []) == VolumePlan(recreate=True)


def test_a_larger_volume_of_an_earlier_cluster_is_used_and_said() -> None:
    plan = plan_volumes(GI, None, [claim("3Gi")])
    assert plan.stated == "3Gi"
    assert "data-main-0 has 3Gi" in plan.refused


def with_volume(
    size: str, capacity: str, *conditions: tuple[str, str], resize: str = "", name: str = "data-main-0"
) -> Any:
    found = claim(size, name)
    found["status"] = {"capacity": {"storage": capacity}}
    found["status"]["conditions"] = [{"type": kind, "status": "True", "message": text} for kind, text in conditions]
    if resize:
        found["status"]["allocatedResourceStatuses"] = {"storage": resize}
    return found


def test_a_volume_that_has_its_size_and_a_claim_without_a_volume_do_not_grow() -> None:
    assert growth_of([with_volume("2Gi", "2048Mi"), with_volume("2Gi", "3Gi"), claim("2Gi")]) is None


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (with_volume("2Gi", "1Gi"), ""),
        (with_volume("2Gi", "1Gi", ("Resizing", "")), ": Resizing"),
        (
            with_volume("2Gi", "1Gi", ("Resizing", ""), ("FileSystemResizePending", "Waiting for a pod to start")),
            ": FileSystemResizePending: Waiting for a pod to start",
        ),
        (with_volume("2Gi", "1Gi", resize="NodeResizePending"), ": NodeResizePending"),
    ],
)
def test_a_volume_grows_until_it_has_the_capacity(found: dict[str, Any], text: str) -> None:
    assert growth_of([found]) == (ClusterReason.VOLUMES_GROWING, f"volume data-main-0 has 1Gi of 2Gi{text}")


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            with_volume("2Gi", "1Gi", ("ControllerResizeError", "no space"), ("Resizing", "")),
            "ControllerResizeError: no space",
        ),
        (with_volume("2Gi", "1Gi", ("NodeResizeError", "")), "NodeResizeError"),
        (with_volume("2Gi", "1Gi", resize="ControllerResizeInfeasible"), "ControllerResizeInfeasible"),
    ],
)
def test_a_volume_that_cannot_grow_comes_before_those_that_do(found: dict[str, Any], text: str) -> None:
    growing = with_volume("2Gi", "1Gi", name="data-main-1")
    failed = (ClusterReason.VOLUME_GROWTH_FAILED, f"volume data-main-0 has 1Gi of 2Gi: {text}")
    assert growth_of([growing, found]) == failed
