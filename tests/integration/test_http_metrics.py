"""/metrics: both formats parse, the names are Pulsar's, labels are escaped, and the documents say what there is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from heliograph_api.values.names import TopicName
from heliograph_broker.http.metrics.exposition import accepts_gzip, prefers_openmetrics
from heliograph_broker.http.metrics.scrape import Scrape
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.topic.directory import AnyTopic
from heliograph_broker.messaging.topic.topic import Topic
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.support.core import Client
from tests.support.entries import make_frame
from tests.support.polling import DEADLINE_S

from .http_api import HttpApi, running_api

_ROOT = Path(__file__).resolve().parents[2]
_TOPIC = "persistent://public/default/we\\ird\"na'me"
#: Labels whose values are part of what Pulsar says.
_FIXED = ("quantile", "le", "quota_type", "reason", "system_topic", "system_subscription")
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Series(NamedTuple):
    """Facts known of a sample's name: the type of its family, and the values of each label."""

    kind: str
    labels: dict[str, set[str]]


def series(text: str) -> dict[str, Series]:
    """Return every sample's name of a text; a family's TYPE line must come once, and right before its samples."""
    found: dict[str, Series] = {}
    kinds: dict[str, str] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split()
            assert family not in kinds, f"the family {family} is there twice"
            kinds[family] = kind
        elif not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match["name"].startswith(family), f"{line} is written as one of {family}"
            labels = found.setdefault(match["name"], Series(kinds[family], {})).labels
            for name, value in _LABEL.findall(match["labels"] or ""):
                labels.setdefault(name, set()).add(value)
    return found


def pulsars() -> dict[str, Series]:
    """Return the project's list of what Pulsar has."""
    found: dict[str, Series] = {}
    for line in (_ROOT / "tests/unit/http/pulsar_metrics.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, kind, labels = line.split()
            pairs = (label.partition("=") for label in labels.split(","))
            found[name] = Series(kind, {label: set(values.split("/")) - {""} for label, _, values in pairs})
    return found


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[HttpApi]:
    async with running_api(tmp_path / "data") as running:
        await running.done("PUT", "/admin/v2/persistent/public/default/we%5Cird%22na'me")
        await running.done("PUT", "/admin/v2/persistent/public/default/we%5Cird%22na'me/subscription/s")
        yield running


async def _with_quotas(api: HttpApi) -> None:
    for kind, limit in (("destination_storage", '"limitSize": 1000'), ("message_age", '"limitTime": 60')):
        body = f'{{{limit}, "policy": "producer_exception"}}'
        await api.done("POST", f"/admin/v2/namespaces/public/default/backlogQuota?backlogQuotaType={kind}", body)


@pytest.mark.parametrize("openmetrics", [False, True])
async def test_both_formats_parse_and_agree(api: HttpApi, openmetrics: bool) -> None:
    await _with_quotas(api)
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
    assert samples["pulsar_storage_backlog_quota_limit", *labels] == 1000
    assert samples["pulsar_storage_backlog_quota_limit_time", *labels] == 60
    assert samples["pulsar_topics_count", ("cluster", "standalone"), ("namespace", "public/default")] == 1
    assert samples["heliograph_group_commit_seconds_count",] > 0
    assert samples["process_resident_memory_bytes",] > 0


async def test_totals_are_gauges_as_pulsars_and_counters_in_openmetrics(api: HttpApi) -> None:
    text = (await api.request("GET", "/metrics")).body
    openmetrics = (await api.request("GET", "/metrics", Accept="application/openmetrics-text")).body
    assert "# TYPE pulsar_in_messages_total gauge\n" in text
    assert "# TYPE pulsar_in_messages counter\n" in openmetrics
    assert "# TYPE heliograph_expired_messages_total counter\n" in text
    assert "# TYPE heliograph_expired_messages counter\n" in openmetrics
    names = {_SAMPLE.match(line)["name"] for line in text.splitlines() if line[0] != "#"}  # type: ignore[index]
    assert names == {_SAMPLE.match(line)["name"] for line in openmetrics.splitlines() if line[0] != "#"}  # type: ignore[index]


async def test_every_family_of_pulsar_is_there_with_its_type_and_labels(api: HttpApi) -> None:
    ours, theirs = series(await api.get("/metrics")), pulsars()
    assert len(theirs) > 140
    assert {name for name in theirs if name not in ours} == set(), "missing; none is left out on purpose"
    for name, (kind, labels) in theirs.items():
        assert ours[name].kind == kind, name
        assert set(ours[name].labels) == set(labels), name
        fixed = {label: values for label, values in ours[name].labels.items() if label in _FIXED}
        assert fixed == {label: values for label, values in labels.items() if label in _FIXED}, name
    own = {name for name in ours if name.startswith("pulsar_")} - set(theirs)
    # Pulsar writes it of a namespace, and the list is of a topic that was never compacted, and of its broker.
    assert own == {"pulsar_topics_count"}


def _expanded(name: str) -> Iterator[str]:
    """Yield the names that a name with {alternatives,in,braces} stands for."""
    match = re.search(r"\{([^}]*)\}", name)
    if match is None:
        yield name
        return
    for alternative in match[1].split(","):
        yield from _expanded(name[: match.start()] + alternative + name[match.end() :])


def _documented() -> dict[str, set[str]]:
    """Return each family of docs/metrics.md with its labels."""
    found: dict[str, set[str]] = {}
    of_all: set[str] = set()
    for line in (_ROOT / "docs/metrics.md").read_text().partition("## Operator")[0].splitlines():
        if line.startswith("## "):
            of_all = set()
        elif line.startswith("All have the labels "):
            of_all = set(re.findall(r"`(\w+)`", line))
        elif re.match(r"\| `\w+[_{]", line):
            _, names, labels, _, meaning, _ = line.split("|")
            assert meaning.strip(), line
            for name in _expanded(names.strip().strip("`")):
                assert name not in found, f"{name} is documented twice"
                found[name] = of_all | set(re.findall(r"`(\w+)`", labels))
    return found


async def _compact(api: HttpApi) -> None:
    topic = api.broker.directory.get_topic(TopicName.parse(_TOPIC))
    assert isinstance(topic, Topic)
    metadata, frame = make_frame(b"value", key="k")
    topic.publish(Producer(topic, Client(), 1, "p"), 0, 0, metadata, frame)
    await api.request("GET", "/health/ready")
    topic.compaction.start()
    async with asyncio.timeout(DEADLINE_S):
        while topic.compaction.status()[0] == "RUNNING":
            await api.get("/health/live")
    assert topic.compaction.status() == ("SUCCESS", "")


#: Families of a broker with authentication or TLS only.
_OF_CLOSED_BROKERS = (
    "heliograph_authentications_total",
    "heliograph_authorization_decisions_total",
    "heliograph_issuer_key_fetches_total",
    "heliograph_issuer_keys_age_seconds",
    "heliograph_tls_certificate_expiry_timestamp_seconds",
    "heliograph_tls_files_refused",
    "heliograph_tls_handshakes",
    "heliograph_tls_reload_failures_total",
    "heliograph_tls_reloads_total",
)


async def test_the_documents_list_what_there_is_and_nothing_else(api: HttpApi) -> None:
    await _with_quotas(api)
    await _compact(api)
    api.broker.containment.failed("part", "duty", ValueError("boom"))
    text = await api.get("/metrics")
    documented = _documented()
    for name in _OF_CLOSED_BROKERS:
        del documented[name]
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    assert families == set(documented)
    labels: dict[str, set[str]] = {family: set() for family in families}
    for name, (_, of_name) in series(text).items():
        family = name if name in families else re.sub(r"_(bucket|sum|count|total|created)$", "", name)
        labels[family] |= set(of_name)
    assert labels == documented


async def test_what_is_common_to_many_topics_can_be_left_out(tmp_path: Path) -> None:
    topics = 3
    texts = {}
    for level in ("topic", "namespace", "broker"):
        async with running_api(tmp_path / level, metrics_level=level) as api:
            await api.done("PUT", "/admin/v2/namespaces/public/other")
            for namespace in ("default", "other"):
                for index in range(topics):
                    path = f"/admin/v2/persistent/public/{namespace}/t{index}"
                    await api.done("PUT", path)
                    await api.done("PUT", f"{path}/subscription/s")
            texts[level] = await api.get("/metrics")
            list(parse_text(texts[level]))
    by_topic, by_namespace, by_broker = (series(texts[level]) for level in ("topic", "namespace", "broker"))
    assert by_topic["pulsar_msg_backlog"].labels.keys() == {"cluster", "namespace", "topic"}
    assert by_namespace["pulsar_msg_backlog"].labels.keys() == {"cluster", "namespace", "remote_cluster"}
    for of_namespaces in (name for name, found in by_namespace.items() if "namespace" in found.labels):
        assert not {"topic", "subscription"} & by_namespace[of_namespaces].labels.keys(), of_namespaces
    labels = 'cluster="standalone",namespace="public/other"'
    assert f"pulsar_topics_count{{{labels}}} {topics}\n" in texts["namespace"]
    assert f"pulsar_subscriptions_count{{{labels}}} {topics}\n" in texts["namespace"]
    assert [name for name, found in by_broker.items() if "namespace" in found.labels] == []
    assert "pulsar_broker_subscriptions_count" in by_broker


def with_partitions(api: HttpApi, topic: str, count: int) -> None:
    """Create a partitioned topic as a whole: this broker has no turns."""
    name = TopicName.parse(f"persistent://public/default/{topic}")
    api.broker.partitioned.create(name, count)
    api.broker.topics.growth.finish(name)


async def test_many_topics_come_in_full(api: HttpApi) -> None:
    with_partitions(api, "wide", 1000)
    text = (await api.request("GET", "/metrics")).body
    lines = [line for line in text.splitlines() if line.startswith("pulsar_storage_backlog_size{")]
    assert len(lines) == 1001
    assert text.count("# TYPE pulsar_storage_backlog_size ") == 1


async def test_a_large_scrape_lets_others_have_the_loop(api: HttpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = 2000
    for at in range(2):
        with_partitions(api, f"wide-{at}", topics // 2)
        await api.done("PUT", f"/admin/v2/persistent/public/default/wide-{at}/subscription/s")
    turns, over = 0, False
    turns_of_reads: set[int] = set()
    read_topics = Scrape.read_topics

    def noticed(scrape: Scrape, topics: Sequence[AnyTopic]) -> None:
        turns_of_reads.add(turns)
        read_topics(scrape, topics)

    monkeypatch.setattr(Scrape, "read_topics", noticed)

    async def others() -> None:
        nonlocal turns
        while not over:
            await asyncio.sleep(0)
            turns += 1

    watching = asyncio.create_task(others())
    answer = await api.request("GET", "/metrics", Accept_Encoding="identity")
    over = True
    await watching
    assert answer.body.count("\npulsar_subscription_back_log{") >= topics
    # Reading the topics of one turn takes some milliseconds. benchmarks/run-scrape measures the whole.
    assert len(turns_of_reads) >= 5


async def test_the_answer_is_compressed_for_who_takes_that(api: HttpApi) -> None:
    plain = await api.request("GET", "/metrics", Accept_Encoding="identity")
    assert "Content-Encoding" not in plain.headers
    packed = await api.request("GET", "/metrics", Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert series(packed.body).keys() == series(plain.body).keys()


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        # The header that Prometheus sends.
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=oops", False),
    ],
)
def test_the_format_is_the_one_preferred(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "taken"), [("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0", False), ("*", True), ("", False)]
)
def test_gzip_is_used_where_it_is_allowed(header: str, taken: bool) -> None:
    assert accepts_gzip(header) is taken
