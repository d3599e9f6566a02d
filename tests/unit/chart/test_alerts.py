"""Each alert fires when it should, does not when it should not, and has a page that says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from .conftest import CHART, PROJECT, Helm

FILES = ("broker.yaml", "operator.yaml", "spark.yaml")
RUNBOOKS = PROJECT / "docs" / "runbooks"
MONITORING = "--api-versions=monitoring.coreos.com/v1/PrometheusRule"
#: Abbreviations of the cases.
LABELS = {
    "T": {"namespace": "public/default", "topic": "persistent://public/default/t"},
    "S": {"namespace": "public/default", "topic": "persistent://public/default/t", "subscription": "s"},
}


def rules() -> dict[str, dict[str, Any]]:
    groups = [group for name in FILES for group in yaml.safe_load((CHART / "alerts" / name).read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def cases() -> list[dict[str, Any]]:
    # As text: 0x9 is nine zeros more here, and no number.
    text = (Path(__file__).parent / "alert_cases.yaml").read_text()
    found: list[dict[str, Any]] = yaml.load(text, yaml.BaseLoader)
    return found


def _series(series: dict[str, Any]) -> list[dict[str, str]]:
    def written(short: str) -> str:
        return ",".join(f'{key}="{value}"' for key, value in LABELS[short].items())

    return [
        {"series": re.sub(r"(?<=[{])[TS]\b(?=[,}])", lambda match: written(match[0]), name), "values": values}
        for name, values in series.items()
    ]


def _labels(given: dict[str, str]) -> dict[str, str]:
    found = dict(given)
    for short in [key for key in found if key in LABELS]:
        del found[short]
        found |= LABELS[short]
    return found


def _promtool_tests(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tests of a case as ``promtool test rules`` reads them."""
    rule = rules()[case["alert"]]
    fires = {
        # promtool leaves the name of a series out of an alert's labels.
        "exp_labels": {k: v for k, v in _labels(case["labels"]).items() if k != "__name__"} | rule["labels"],
        "exp_annotations": {"summary": case["summary"], "runbook_url": rule["annotations"]["runbook_url"]},
    }
    tests = [(case["fires"], [fires]), *((series, []) for series in case.get("silent", ()))]
    return [
        {
            "interval": "1m",
            "name": f"{case['alert']} {'fires' if expected else 'is silent'}: {series}",
            "input_series": _series(series),
            "alert_rule_test": [{"eval_time": case["at"], "alertname": case["alert"], "exp_alerts": expected}],
        }
        for series, expected in tests
    ]


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not on this machine (Debian's package prometheus)")
    return program


def run_cases(promtool: str, directory: Path, tested: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run promtool once, on a file for each case that names the rule of that case only."""
    files = []
    for number, case in enumerate(tested):
        rule, file = directory / f"rule-{number}.yaml", directory / f"test-{number}.yaml"
        rule.write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rules()[case["alert"]]]}]}))
        tests = _promtool_tests(case)
        file.write_text(yaml.safe_dump({"rule_files": [rule.name], "evaluation_interval": "1m", "tests": tests}))
        files.append(str(file))
    command = [promtool, "test", "rules", *files]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_each_alert_has_cases_on_both_sides() -> None:
    assert {case["alert"] for case in cases()} == set(rules())
    silent = {case["alert"] for case in cases() if case.get("silent")}
    assert silent == set(rules())


def test_each_alert_fires_when_it_should_and_only_then(promtool: str, tmp_path: Path) -> None:
    done = run_cases(promtool, tmp_path, cases())
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_are_rules_that_prometheus_loads(promtool: str) -> None:
    command = [promtool, "check", "rules", *(str(CHART / "alerts" / name) for name in FILES)]
    subprocess.run(command, capture_output=True, timeout=60, check=True)


def test_a_case_that_is_wrong_is_found(promtool: str, tmp_path: Path) -> None:
    case = next(each for each in cases() if each["alert"] == "HeliographBrokersMissing")
    for wrong in ({**case, "fires": case["silent"][0]}, {**case, "silent": [case["fires"]]}, {**case, "summary": "no"}):
        assert run_cases(promtool, tmp_path, [wrong]).returncode != 0


def test_each_alert_says_how_bad_it_is_names_its_object_and_links_its_page() -> None:
    for name, rule in rules().items():
        assert rule["labels"] == {"severity": rule["labels"]["severity"]}
        assert rule["labels"]["severity"] in ("warning", "critical"), name
        assert rule["annotations"].keys() == {"summary", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"] == f"https://heliograph.dev/docs/runbooks/{name}.md"
        if name != "HeliographOperatorAbsent":
            assert "{{" in rule["annotations"]["summary"], f"{name} names no object"


def test_alerts_ask_for_metrics_that_are_documented() -> None:
    text = (PROJECT / "docs" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) | {"pulsar_broker_publish_latency"}
    # Labels of a target.
    labels = {"heliograph_dev_service"}
    asked = {
        name: set(re.findall(r"\b(?:heliograph|pulsar)_\w+", rule["expr"])) - labels for name, rule in rules().items()
    }
    assert {name: unknown for name, used in asked.items() if (unknown := used - documented)} == {}
    assert [name for name, used in asked.items() if not used and "up{" not in rules()[name]["expr"]] == []


def test_each_alert_has_a_page_and_each_page_an_alert() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(rules())
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted((name, rule["labels"]["severity"]) for name, rule in rules().items())
    for name in pages:
        text = (RUNBOOKS / f"{name}.md").read_text()
        assert re.findall(r"^#+ .*", text, re.MULTILINE) == [
            f"# {name}",
            "## Meaning",
            "## Impact",
            "## Diagnosis",
            "## What to do",
        ], name
        assert "```sh" in text.partition("## Diagnosis")[2], f"{name}: its diagnosis has no command"


def test_the_chart_ships_the_rules_as_they_are(helm: Helm) -> None:
    [rule] = [each for each in helm.template(MONITORING) if each["kind"] == "PrometheusRule"]
    shipped = {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}
    assert shipped == rules()
    assert [group["interval"] for group in rule["spec"]["groups"]] == ["30s"] * len(FILES)


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"quotaUsageRatio": 0.55}, {"HeliographBacklogQuotaNearlyUsed": "> 0.55"}),
        ({"diskFreeRatio": 0.25}, {"HeliographDiskNearlyFull": "< 0.25"}),
        ({"archiveAgeSeconds": 700000}, {"HeliographArchiveLate": "> 700000"}),
        ({"backupAgeSeconds": 4000}, {"HeliographBackupLate": "> 4000"}),
    ],
)
def test_a_threshold_of_the_values_is_that_of_one_alert(
    helm: Helm, values: dict[str, float], changed: dict[str, str]
) -> None:
    found = helm.template(MONITORING, metrics={"prometheusRule": values})
    [rule] = [each for each in found if each["kind"] == "PrometheusRule"]
    shipped = {each["alert"]: each for group in rule["spec"]["groups"] for each in group["rules"]}
    different = {name for name, each in shipped.items() if each != rules()[name]}
    assert different == set(changed)
    for name, text in changed.items():
        assert text in shipped[name]["expr"]


def test_the_pages_may_be_elsewhere(helm: Helm) -> None:
    found = helm.template(MONITORING, metrics={"prometheusRule": {"runbooks": "https://wiki.example.com/heliograph"}})
    [rule] = [each for each in found if each["kind"] == "PrometheusRule"]
    for group in rule["spec"]["groups"]:
        for each in group["rules"]:
            assert each["annotations"]["runbook_url"] == f"https://wiki.example.com/heliograph/{each['alert']}.md"
