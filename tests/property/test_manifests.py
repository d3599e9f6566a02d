"""Whatever is in a file, a broker that reads it gets resources or a ManifestError: never another exception."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.manifests.documents import NotReadable, read_json, read_yaml, write_yaml
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.resources.model import AnyResource
from hypothesis import given
from hypothesis import strategies as st

# On a busy machine the time an example takes says nothing.

_WORDS = st.sampled_from(
    ["10G", "3d", "-1", "infinite", "Delete", "producer_exception", "a", "", "persistent://t/n/x", "x-partition-1"]
)
_NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text("aZ0.:/-é\n", max_size=8) | _WORDS
_KEYS = st.sampled_from(
    [
        "retention",
        "time",
        "size",
        "backlogQuota",
        "destinationStorage",
        "messageAge",
        "limit",
        "policy",
        "messageTTL",
        "deadLetterTopic",
        "expires",
        "namespaceRef",
        "tenantRef",
        "name",
        "partitions",
        "subscriptions",
        "properties",
        "limits",
        "persistent",
        "maxProducers",
        "storage",
        "brokerDefaults",
        "unknown",
    ]
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=8
)


@given(
    st.sampled_from(["Topic", "Namespace", "Tenant", "BrokerCluster"]),
    st.dictionaries(_KEYS, _VALUES, max_size=6),
    st.fixed_dictionaries({}, optional={"name": _VALUES, "labels": _VALUES, "namespace": _VALUES}),
)
def test_any_spec_is_a_resource_or_refused(kind: str, spec: dict[str, Any], metadata: dict[str, Any]) -> None:
    text = write_yaml(
        [{"apiVersion": "heliograph.dev/v1alpha1", "kind": kind, "metadata": {"name": "a", **metadata}, "spec": spec}]
    )
    resources, problems = _parsed(text)
    assert len(resources) == (0 if problems else 1)
    for problem in problems:
        assert "\n" not in problem
        assert len(problem) < 1000


@given(st.text() | st.text("{}[]:,-?&*!|>'\"%@#~ \n\tax1", max_size=60))
def test_any_text_is_manifests_or_refused(text: str) -> None:
    resources, problems = _parsed(text)
    assert not (resources and problems)


def _parsed(text: str) -> tuple[list[AnyResource], list[str]]:
    try:
        return parse(text, "m.yaml"), []
    except ManifestError as error:
        problems = error.problems
    assert problems
    assert all(problem.startswith("m.yaml: ") for problem in problems)
    return [], problems


@given(st.lists(_VALUES, min_size=1, max_size=3))
def test_what_is_written_is_read_back(documents: list[Any]) -> None:
    assert read_yaml(write_yaml(documents)) == documents


@given(st.text() | st.text('{}[]:,"ax1.e-+ ', max_size=40))
def test_any_text_is_json_or_refused(text: str) -> None:
    try:
        read_json(text)
    except NotReadable:
        return


def test_a_document_that_holds_itself_is_refused() -> None:
    with pytest.raises(ManifestError):
        parse(
            "&a {apiVersion: heliograph.dev/v1alpha1, kind: Tenant, metadata: *a, spec: {limits: *a, adminRoles: [*a]}}"
        )


def test_a_bomb_of_aliases_is_refused_in_few_words() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    lines += ["apiVersion: heliograph.dev/v1alpha1", "kind: Tenant", "metadata: {name: a}", "spec: {adminRoles: *l11}"]
    with pytest.raises(ManifestError) as caught:
        parse("\n".join(lines))
    assert len(str(caught.value)) < 10_000
