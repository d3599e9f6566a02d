"""/metrics: both formats parse, names are Pulsar's, labels are escaped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from .http_api import HttpApi, running_api

_TOPIC = "persistent://public/default/we\\ird\"na'me"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", "/admin/v2/persistent/public/default/we%5Cird%22na'me")
        await running.done("PUT", "/admin/v2/persistent/public/default/we%5Cird%22na'me/subscription/s")
        yield running


@pytest.mark.parametrize("openmetrics", [False, True])
async def test_both_formats_parse_and_agree(api: HttpApi, openmetrics: bool) -> None:
    accept = "application/openmetrics-text; version=1.0.0" if openmetrics else "text/plain"
    answer = await api.request("GET", "/metrics", Accept=accept)
    assert answer.status == 200
    assert ("openmetrics" in answer.headers["Content-Type"]) is openmetrics
    assert answer.body.endswith("# EOF\n") is openmetrics
    families = list((parse_openmetrics if openmetrics else parse_text)(answer.body))
    samples = {(sample.name, *sorted(sample.labels.items())): sample.value for f in families for sample in f.samples}
    labels = [("cluster", "standalone"), ("namespace", "public/default"), ("topic", _TOPIC)]
    assert samples["pulsar_subscriptions_count", *labels] == 1
    assert samples["pulsar_msg_backlog", *labels] == 0
    with_subscription = sorted([*labels, ("subscription", "s")])
    assert samples["pulsar_subscription_back_log", *with_subscription] == 0
    assert samples["pulsar_topics_count", ("cluster", "standalone"), ("namespace", "public/default")] == 1
    assert samples["heliograph_group_commit_seconds_count",] > 0
    assert samples["process_resident_memory_bytes",] > 0
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is there twice"


async def test_many_topics_come_in_full(api: HttpApi) -> None:
    await api.done("PUT", "/admin/v2/persistent/public/default/wide/partitions", "1000")
    text = (await api.request("GET", "/metrics")).body
    lines = [line for line in text.splitlines() if line.startswith("pulsar_storage_backlog_size{")]
    assert len(lines) == 1001
    assert text.count("# TYPE pulsar_storage_backlog_size ") == 1
