"""An upgrade with ``--reuse-values`` keeps the values of the release, also where the new chart has more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import CHART, KUBERNETES, Helm

#: What a person may leave out, or what is handed on as it is.
_FREE = ("operator.resources", "defaultCluster.spec.", "metrics.dashboard.labels")


def _sections(values: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and value and not f"{above}{name}".startswith(_FREE):
            yield f"{above}{name}"
            yield from _sections(value, f"{above}{name}.")


def defaults() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def rendered(helm: Helm, directory: Path, values: dict[str, Any]) -> tuple[str, str]:
    """Return output and errors of helm for the chart with these values in place of its own, as helm reuses them."""
    chart = directory / "heliograph"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    (chart / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    done = helm.run("template", "main", str(chart), "--namespace=here", f"--kube-version={KUBERNETES}")
    return done.stdout, done.stderr


@pytest.mark.parametrize("section", list(_sections(defaults())))
def test_values_of_an_earlier_chart_are_refused_with_what_helps(helm: Helm, tmp_path: Path, section: str) -> None:
    values = defaults()
    at = values
    *above, last = section.split(".")
    for name in above:
        at = at[name]
    del at[last]
    printed, error = rendered(helm, tmp_path, values)
    assert printed == ""
    assert f"{section}: the values lack it" in error
    assert "helm upgrade --reset-then-reuse-values" in error


def test_a_release_that_is_open_stays_open_with_its_values(helm: Helm, tmp_path: Path) -> None:
    values = defaults()
    values["authentication"]["enabled"] = False
    del values["defaultCluster"]["spec"]["authentication"]
    printed, error = rendered(helm, tmp_path, values)
    assert error == ""
    made = [each for each in yaml.safe_load_all(printed) if each and each["kind"] == "BrokerCluster"]
    assert [each["spec"] for each in made] == [{"storage": {"size": "10Gi"}}]
