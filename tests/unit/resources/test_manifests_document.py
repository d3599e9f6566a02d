"""``docs/manifests.md`` says what is so: its snippets load, its errors are the errors, its tables name the fields.

The snippets of ``docs/install.md`` load, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from heliograph_api.manifests.manifest_error import ManifestError
from heliograph_api.manifests.manifest_reader import parse
from heliograph_api.manifests.plan import Existing, plan
from heliograph_api.resources.cluster_spec import BrokerClusterSpec
from heliograph_api.resources.model import NamespaceSpec, TenantSpec, TopicSpec
from heliograph_api.resources.specs import PolicySpec
from heliograph_api.resources.subscription_spec import SubscriptionSpec
from pydantic import BaseModel

DOCUMENT, INSTALL = (
    (Path(__file__).parents[3] / "docs" / name).read_text(encoding="utf-8") for name in ("manifests.md", "install.md")
)
SNIPPETS = re.findall(r"^```yaml\n(.*?)^```", DOCUMENT + INSTALL, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_can_be_applied(number: int) -> None:
    resources = parse(SNIPPETS[number], f"snippet {number}")
    assert resources
    assert plan(resources, Existing(["shop"], ["shop/payments"]))


def test_there_are_snippets() -> None:
    assert SNIPPETS
    assert DOCUMENT.count("```yaml") + INSTALL.count("```yaml") == len(SNIPPETS)


def test_the_errors_shown_are_the_errors() -> None:
    shown = re.search(r"```text\n(.*?)```", DOCUMENT, flags=re.DOTALL)
    assert shown is not None
    resource = "{{apiVersion: heliograph.dev/v1alpha1, kind: {}, metadata: {{name: {}}}, spec: {}}}\n"
    text = "---\n".join(
        [
            resource.format("Tenant", "shop", "{}"),
            resource.format(
                "Topic", "orders", "{namespaceRef: {name: a}, retention: {time: 1d, size: 10Q}, partitions: '4'}"
            ),
            resource.format("Topic", "bills", "{namespaceRef: {name: a}, retentions: {}}"),
        ]
    )
    with pytest.raises(ManifestError) as caught:
        parse(text, "orders.yaml")
    lines = shown.group(1).splitlines()
    assert len(lines) == len(caught.value.problems)
    for line, problem in zip(lines, caught.value.problems, strict=True):
        assert problem == line or (line.endswith("…") and problem.startswith(line[:-1]))


@pytest.mark.parametrize(
    ("section", "model", "inherited"),
    [
        ("Policies", PolicySpec, None),
        ("Topic", TopicSpec, PolicySpec),
        ("Subscription", SubscriptionSpec, None),
        ("Namespace", NamespaceSpec, PolicySpec),
        ("Tenant", TenantSpec, None),
        ("BrokerCluster", BrokerClusterSpec, None),
    ],
)
def test_the_tables_have_every_field_and_no_other(
    section: str, model: type[BaseModel], inherited: type[BaseModel] | None
) -> None:
    text = DOCUMENT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[A-Za-z.]+`(?:, `[A-Za-z.]+`)*) \|", text, flags=re.MULTILINE)
    documented = {name.split(".")[0] for row in rows for name in re.findall(r"`([A-Za-z.]+)`", row)}
    hidden = set(inherited.model_fields) if inherited else set()
    assert documented == {field.alias for name, field in model.model_fields.items() if name not in hidden}
