"""Strategic merge by Kubernetes' keys, and what a pod template of a BrokerCluster may not change."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from heliograph_operator.decide.strategic_merge import KEYS, PatchError, merge
from hypothesis import given
from hypothesis import strategies as st

from .test_cluster_objects import container, pod


@pytest.mark.parametrize(
    ("base", "patch", "merged"),
    [
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "b": 3}}, {"a": {"b": 3}}),
        ({"args": ["a"]}, {"args": ["b", "c"]}, {"args": ["b", "c"]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        (
            {"containers": [{"name": "a", "image": "x"}]},
            {"containers": [{"name": "b"}, {"name": "a", "tty": True}]},
            {"containers": [{"name": "a", "image": "x", "tty": True}, {"name": "b"}]},
        ),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B"}]},
            {"env": [{"name": "A", "$patch": "delete"}]},
            {"env": [{"name": "B"}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "readOnly": True}, {"mountPath": "/b", "name": "x"}]},
            {"volumeMounts": [{"mountPath": "/a", "name": "x", "readOnly": True}, {"mountPath": "/b", "name": "x"}]},
        ),
        (
            {"ports": [{"containerPort": 53, "protocol": "UDP"}]},
            {"ports": [{"containerPort": 53}, {"containerPort": 53, "protocol": "UDP", "name": "dns"}]},
            {"ports": [{"containerPort": 53, "protocol": "UDP", "name": "dns"}, {"containerPort": 53}]},
        ),
        (
            {"volumes": [{"name": "tmp", "emptyDir": {}}]},
            {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]},
            {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]},
        ),
        (
            {"hostAliases": [{"ip": "10.0.0.1"}]},
            {"hostAliases": [{"$patch": "replace"}, {"ip": "10.0.0.2"}]},
            {"hostAliases": [{"ip": "10.0.0.2"}]},
        ),
    ],
)
def test_a_patch_is_merged(base: dict[str, Any], patch: dict[str, Any], merged: dict[str, Any]) -> None:
    given_base, given_patch = copy.deepcopy(base), copy.deepcopy(patch)
    assert merge(base, patch) == merged
    assert (base, patch) == (given_base, given_patch)


@pytest.mark.parametrize(
    ("patch", "error"),
    [
        ({"containers": [{"image": "x"}]}, "containers: an item has no name; valid: a name in each, …"),
        ({"containers": ["a"]}, "containers: an item has no name; …"),
        ({"spec": {"$patch": "delete"}}, "spec.$patch: 'delete' is not possible here; valid: replace"),
        ({"$setElementOrder/env": ["A"]}, "$setElementOrder/env: is not supported; valid: $patch"),
        ({"volumes": [{"name": "a", "$patch": "keep"}]}, "volumes[a].$patch: 'keep' is not possible here; …"),
        ({"volumes": [{"$patch": "delete"}]}, "volumes.$patch: is not possible here; …"),
        ({"volumes": [None]}, "volumes: an item has no name; …"),
        ({"containers": [{"name": ["a"]}]}, "containers.name: is no text; valid: a text"),
        ({"containers": [{"name": 5}]}, "containers.name: is no text; valid: a text"),
        ({"volumeMounts": [{"mountPath": 5}]}, "volumeMounts.mountPath: is no text; valid: a text"),
        ({"ports": [{"containerPort": 1, "protocol": ["TCP"]}]}, "ports.protocol: is no text; valid: a text"),
        ({"ports": [{"containerPort": "x"}]}, "ports.containerPort: is no whole number; valid: a whole number"),
    ],
)
def test_a_patch_that_cannot_be_merged_is_refused_by_field(patch: dict[str, Any], error: str) -> None:
    with pytest.raises(PatchError) as found:
        merge({}, patch)
    assert str(found.value).startswith(error.removesuffix("…"))


_NAMES = st.sampled_from(["a", "b", "c"])
_SCALARS = st.one_of(st.booleans(), st.integers(0, 9), _NAMES)


def _items(key: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    item = st.builds(lambda name, more: {**more, key: name}, _NAMES, st.dictionaries(_NAMES, _SCALARS, max_size=2))
    return st.lists(item, max_size=3, unique_by=lambda each: each[key])


_MAPS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(_NAMES, _SCALARS, max_size=3),
    lambda below: st.fixed_dictionaries(
        {},
        optional={
            "a": below,
            "containers": _items("name"),
            "env": _items("name"),
            "volumeMounts": _items("mountPath"),
            "tolerations": st.lists(below, max_size=2),
        },
    ),
    max_leaves=6,
)


@given(base=_MAPS, patch=_MAPS)
def test_a_merge_has_all_of_the_patch_keeps_the_rest_and_changes_nothing_when_repeated(
    base: dict[str, Any], patch: dict[str, Any]
) -> None:
    merged = merge(base, patch)
    assert merge(base, {}) == base
    assert merge({}, patch) == patch
    assert merge(merged, patch) == merged
    assert _has(merged, patch)
    for name in base.keys() - patch.keys():
        assert merged[name] == base[name]
    for name in merged.keys() & KEYS.keys():
        keys = [item[KEYS[name][0]] for item in merged[name]]
        before = [item[KEYS[name][0]] for item in base.get(name, ())]
        assert len(set(keys)) == len(keys)
        assert keys[: len(before)] == before


def _has(merged: Any, patch: Any) -> bool:
    if isinstance(patch, dict) and isinstance(merged, dict):
        return all(name in merged and _in(name, merged[name], value) for name, value in patch.items())
    return bool(merged == patch)


def _in(name: str, merged: Any, value: Any) -> bool:
    if name not in KEYS:
        return _has(merged, value)
    key = KEYS[name][0]
    there = {item[key]: item for item in merged}
    return all(_has(there[item[key]], item) for item in value)


def _patched(**spec: Any) -> dict[str, Any]:
    return pod(podTemplate={"spec": spec})


def test_a_pod_template_adds_to_the_pod_of_the_broker() -> None:
    sidecar = {"name": "logs", "image": "logs:1", "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}]}
    found = _patched(
        containers=[sidecar, {"name": "broker", "readinessProbe": {"periodSeconds": 5}}],
        initContainers=[{"name": "wait", "image": "wait:1"}],
        volumes=[{"name": "extra", "configMap": {"name": "x"}}],
        securityContext={"fsGroup": 7},
        serviceAccountName="mine",
        runtimeClassName="gvisor",
    )["spec"]
    assert [each["name"] for each in found["containers"]] == ["broker", "logs"]
    assert found["containers"][1] == sidecar
    assert found["containers"][0] == container() | {
        "readinessProbe": container()["readinessProbe"] | {"periodSeconds": 5}
    }
    assert [each["name"] for each in found["volumes"]] == ["tmp", "extra"]
    assert (found["securityContext"]["fsGroup"], found["securityContext"]["runAsNonRoot"]) == (7, True)
    assert (found["serviceAccountName"], found["runtimeClassName"]) == ("mine", "gvisor")
    assert found["initContainers"] == [{"name": "wait", "image": "wait:1"}]
    metadata = pod(podTemplate={"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})["metadata"]
    assert metadata["labels"] == pod()["metadata"]["labels"] | {"a": "b"}
    assert metadata["annotations"] == pod()["metadata"]["annotations"] | {"c": "d"}


def test_an_empty_pod_template_changes_nothing() -> None:
    assert pod(podTemplate={}) == pod(podTemplate={"metadata": {}, "spec": {}}) == pod()


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}, "metadata.labels[app.kubernetes.io/instance]"),
        ({"metadata": {"annotations": {"heliograph.dev/config": "x"}}}, "metadata.annotations[heliograph.dev/config]"),
        ({"spec": {"hostname": "x"}}, "spec.hostname"),
        ({"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}, "spec.volumes[data]"),
        ({"spec": {"containers": [{"name": "broker", "$patch": "delete"}]}}, "spec.containers[broker]"),
        ({"spec": {"initContainers": [{"name": "restore", "image": "x"}]}}, "spec.initContainers[restore]"),
        ({"spec": {"containers": [{"name": "broker", "image": "x"}]}}, "spec.containers[broker].image"),
        ({"spec": {"containers": [{"name": "broker", "command": ["x"]}]}}, "spec.containers[broker].command"),
        ({"spec": {"containers": [{"name": "broker", "args": None}]}}, "spec.containers[broker].args"),
        (
            {"spec": {"containers": [{"name": "broker", "ports": [{"containerPort": 6650, "name": "x"}]}]}},
            "spec.containers[broker].ports[pulsar]",
        ),
        (
            {"spec": {"containers": [{"name": "broker", "env": [{"name": "HELIOGRAPH_DATA_DIR", "value": "/x"}]}]}},
            "spec.containers[broker].env[HELIOGRAPH_DATA_DIR]",
        ),
        (
            {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"mountPath": "/data", "name": "x"}]}]}},
            "spec.containers[broker].volumeMounts[/data]",
        ),
        (
            {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"mountPath": "/data/a/", "name": "x"}]}]}},
            "spec.containers[broker].volumeMounts[/data/a/]",
        ),
        *(
            (
                {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"mountPath": path, "name": "x"}]}]}},
                f"spec.containers[broker].volumeMounts[{path}]",
            )
            for path in (
                "//data",
                "/./data",
                "/x/../data",
                "/data/x/..",
                "/data/.",
                "data",
                "/../data//a",
                "./x/../data",
            )
        ),
        (
            {"spec": {"$patch": "replace", "containers": [{"name": "a"}]}},
            "spec.containers[broker]",
        ),
    ],
)
def test_what_the_operator_depends_on_is_refused_by_field(template: dict[str, Any], field: str) -> None:
    with pytest.raises(PatchError) as found:
        pod(podTemplate=template)
    assert found.value.field == f"spec.podTemplate.{field}"
    assert "; valid: " in str(found.value)


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"spec": {"containers": "x"}}, "spec.containers"),
        ({"spec": {"containers": [{"$patch": "replace"}, "x"]}}, "spec.containers"),
        ({"spec": {"containers": {"name": "broker"}}}, "spec.containers"),
        ({"spec": {"$patch": "replace", "containers": {"name": "broker"}}}, "spec.containers"),
        ({"spec": {"$patch": "replace", "volumes": "x"}}, "spec.volumes"),
        (
            {"spec": {"containers": [{"name": "broker", "$patch": "replace", "env": "x"}]}},
            "spec.containers[broker].env",
        ),
        ({"spec": {"containers": ["x"]}}, "spec.containers"),
        ({"spec": {"containers": [{"name": ["a"]}]}}, "spec.containers.name"),
        ({"spec": {"volumes": "x"}}, "spec.volumes"),
        ({"spec": {"volumes": {"data": {}}}}, "spec.volumes"),
        ({"spec": {"volumes": [{"name": {"a": 1}}]}}, "spec.volumes.name"),
        ({"spec": {"containers": [{"name": "broker", "env": "x"}]}}, "spec.containers[broker].env"),
        ({"spec": {"containers": [{"name": "broker", "ports": {"a": 1}}]}}, "spec.containers[broker].ports"),
        (
            {"spec": {"containers": [{"name": "broker", "ports": [{"containerPort": 1, "name": ["x"]}]}]}},
            "spec.containers[broker].ports[1].name",
        ),
        (
            {"spec": {"containers": [{"name": "broker", "volumeMounts": [{"name": "tmp", "mountPath": 5}]}]}},
            "spec.containers[broker].volumeMounts.mountPath",
        ),
        ({"spec": {"containers": [{"name": "broker", "volumeMounts": "x"}]}}, "spec.containers[broker].volumeMounts"),
    ],
)
def test_a_value_of_another_type_is_refused_by_field(template: dict[str, Any], field: str) -> None:
    with pytest.raises(PatchError) as found:
        pod(podTemplate=template)
    assert found.value.field == f"spec.podTemplate.{field}"
    assert "; valid: " in str(found.value)


_ANYTHING = st.recursive(
    st.sampled_from([None, True, 0, 5, "", "x", "broker", "data", "/data"]),
    lambda below: (
        st.lists(below, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "mountPath", "containerPort", "protocol", "$patch"]), below, max_size=3
        )
    ),
    max_leaves=6,
)
_PARTS = st.dictionaries(
    st.sampled_from(["hostname", "subdomain", "volumes", "containers", "initContainers", "env", "x"]),
    _ANYTHING,
    max_size=3,
)
_FIELDS_OF_A_CONTAINER = st.dictionaries(
    st.sampled_from(["env", "ports", "volumeMounts", "volumeDevices", "image", "args", "resources"]),
    _ANYTHING,
    max_size=2,
)


def _broker(template: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in template["spec"]["containers"] if each["name"] == "broker")


@given(
    spec=_PARTS | st.builds(lambda fields: {"containers": [{"name": "broker", **fields}]}, _FIELDS_OF_A_CONTAINER),
)
def test_whatever_a_pod_template_has_it_is_merged_or_refused(spec: Any) -> None:
    with contextlib.suppress(PatchError):
        assert _broker(_patched(**spec))["image"] == container()["image"]


def test_other_mounts_are_free() -> None:
    paths = ["/data2", "/x/data", "/data/../x", "/tmp/../data-of-others"]
    mounts = [{"mountPath": path, "name": "tmp"} for path in paths]
    found = _patched(containers=[{"name": "broker", "volumeMounts": mounts}])
    assert [each["mountPath"] for each in _broker(found)["volumeMounts"]] == ["/data", "/tmp", *paths]


def test_a_label_may_have_the_name_of_a_list() -> None:
    found = pod(podTemplate={"metadata": {"labels": {"env": "test"}}, "spec": {"nodeSelector": {"volumes": "fast"}}})
    assert found["metadata"]["labels"]["env"] == "test"
    assert found["spec"]["nodeSelector"] == {"volumes": "fast"}
