"""The administration commands against a real broker: the retention cookbook, every policy, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import shlex
from typing import Any, Protocol

import pulsar
import pytest
from heliograph_broker.cli import commands as cli_commands
from heliograph_broker.cli.policies.policy_flags import Policy
from heliograph_broker.cli.policies.policy_levels import NAMESPACE_POLICIES, SUBSCRIPTION_POLICIES, TOPIC_POLICIES

from tests.support.broker_process import BrokerProcess
from tests.support.clients import BATCH_WAITS_MS, fresh_name
from tests.support.command_line import CommandLine
from tests.support.ran import Ran
from tests.support.rest import call


class Run(Protocol):
    def __call__(self, command: str, *, code: int = 0, answer: str = "") -> Ran: ...


@pytest.fixture
def run(broker: BrokerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process, through the entry point of the real command."""
    monkeypatch.setenv("HELIOGRAPH_HTTP_URL", broker.http_url)

    command_line = CommandLine(monkeypatch, capsys)

    def heliograph(command: str, *, code: int = 0, answer: str = "") -> Ran:
        ran = command_line(*shlex.split(command), answer=answer)
        assert ran.code == code, f"{command}\n{ran.out}\n{ran.err}"
        return ran

    return heliograph


@pytest.fixture
def namespace(run: Run) -> str:
    """A namespace of a tenant of its own."""
    tenant = fresh_name("acme")
    run(f"tenants create {tenant}")
    run(f"namespaces create {tenant}/my-ns")
    return f"{tenant}/my-ns"


@pytest.mark.parametrize(
    ("flags", "minutes", "megabytes"),
    [
        ("--size 10G --time 3h", 180, 10 * 1024),
        ("--size 1T --time -1", -1, 1024 * 1024),
        ("--size -1 --time 3h", 180, -1),
        ("--size -1 --time -1", -1, -1),
        ("--size 0 --time 0", 0, 0),
        ("-s 512M -t 3600", 60, 512),
        ("--size=100m --time=2d", 2880, 100),
    ],
)
def test_cookbook_retention(run: Run, namespace: str, flags: str, minutes: int, megabytes: int) -> None:
    assert run(f"namespaces get-retention {namespace}").json is None
    assert run(f"namespaces set-retention {namespace} {flags}").out == f"namespace/{namespace} retention set\n"
    kept = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes}
    assert run(f"namespaces get-retention {namespace}").json == kept
    assert run(f"namespaces policies {namespace}").json["retention_policies"] == kept
    run(f"namespaces remove-retention {namespace}")
    assert run(f"namespaces get-retention {namespace}").json is None


@pytest.mark.parametrize(
    "command",
    [
        "tenants list",
        "clusters list",
        "brokers list",
        "namespaces list TENANT",
        "namespaces topics NAMESPACE",
        "topics list-partitioned-topics NAMESPACE",
        "topics subscriptions TOPIC",
    ],
)
def test_a_list_is_one_value_a_line_or_json(run: Run, namespace: str, command: str) -> None:
    for local in ("a", "b"):
        run(f"topics create {namespace}/{local} --partitions 2")
        run(f"topics create-subscription {namespace}/a -s {local}")
    names = {"TENANT": namespace.partition("/")[0], "NAMESPACE": namespace, "TOPIC": f"{namespace}/a"}
    for name, value in names.items():
        command = command.replace(name, value)
    listed = run(command).out.splitlines()
    assert listed
    # Other tests create tenants meanwhile.
    assert set(run(f"{command} -o json").json) >= set(listed)


@pytest.mark.parametrize(
    ("command", "shown", "document"),
    [
        ("topics list NAMESPACE", "no topics in NAMESPACE", []),
        ("brokers quarantine", "no ledger is in quarantine", []),
        ("topics damaged NAMESPACE/a", "no damaged entries were found", {"entries": 0, "ranges": []}),
    ],
)
def test_a_table_is_for_people_or_json(
    run: Run, namespace: str, command: str, shown: str, document: list[object] | dict[str, object]
) -> None:
    if command.endswith("/a"):
        run(f"topics create {namespace}/a")
    command = command.replace("NAMESPACE", namespace)
    assert run(command).out == shown.replace("NAMESPACE", namespace) + "\n"
    assert run(f"{command} -o json").json == document


def test_every_command_that_prints_a_list_or_a_table_takes_the_option() -> None:
    printing = {"print_lines", "console", "_print", "_print_message"}
    commands = {
        name: function
        for module in pkgutil.iter_modules(cli_commands.__path__)
        if module.name != "store"
        for name, function in vars(importlib.import_module(f"{cli_commands.__name__}.{module.name}")).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and "http_url" in inspect.signature(function).parameters
    }
    lists = {name for name, function in commands.items() if printing & set(function.__code__.co_names)}
    assert {"list_tenants", "find_messages", "damaged"} <= lists
    assert {name for name in lists if "output" not in inspect.signature(commands[name]).parameters} == set()


def test_a_retention_that_nobody_set_is_shown_as_none_and_not_as_one_of_nothing(run: Run, namespace: str) -> None:
    topic = f"{namespace}/orders"
    run(f"topics create {topic}")
    applied = f"topics get-retention {topic} --applied"
    assert run(f"topics get-retention {topic}").json is run(applied).json is None
    run(f"namespaces set-retention {namespace} --size 0 --time 0")
    assert run(f"topics get-retention {topic}").json is None
    assert run(applied).json == {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    run(f"namespaces remove-retention {namespace}")
    assert run(applied).json is None


def test_cookbook_backlog_quotas(run: Run, namespace: str) -> None:
    run(f"namespaces set-backlog-quota {namespace} --limit 2G --policy producer_request_hold")
    size = {"limit": 2 << 30, "limitSize": 2 << 30, "limitTime": -1, "policy": "producer_request_hold"}
    assert run(f"namespaces get-backlog-quotas {namespace}").json == {"destination_storage": size}
    run(f"namespaces set-backlog-quota {namespace} -lt 3600 -p consumer_backlog_eviction -t message_age")
    quotas = run(f"namespaces get-backlog-quotas {namespace}").json
    assert quotas["destination_storage"] == size
    assert (quotas["message_age"]["limitTime"], quotas["message_age"]["policy"]) == (3600, "consumer_backlog_eviction")
    run(f"namespaces remove-backlog-quota {namespace}")
    assert list(run(f"namespaces get-backlog-quotas {namespace}").json) == ["message_age"]
    run(f"namespaces remove-backlog-quota {namespace} --type message_age")
    assert run(f"namespaces get-backlog-quotas {namespace}").json == {}


def test_cookbook_backlog_quota_of_a_topic(run: Run, namespace: str) -> None:
    topic = f"{namespace}/my-topic"
    run(f"topics create {topic}")
    run(f"namespaces set-backlog-quota {namespace} --limit 2G --policy producer_exception")
    run(f"topics set-backlog-quota {topic} --limitTime 3600 --policy producer_request_hold --type message_age")
    assert list(run(f"topics get-backlog-quotas {topic}").json) == ["message_age"]
    applied = run(f"topics get-backlog-quotas {topic} --applied").json
    assert applied["message_age"]["limitTime"] == 3600
    assert applied["destination_storage"]["limitSize"] == 2 << 30
    run(f"topics remove-backlog-quota {topic} -t message_age")
    assert run(f"topics get-backlog-quotas {topic}").json == {}


def test_cookbook_time_to_live(run: Run, namespace: str) -> None:
    run(f"namespaces set-message-ttl {namespace} --messageTTL 120")
    assert run(f"namespaces get-message-ttl {namespace}").json == 120
    run(f"namespaces set-message-ttl {namespace} -ttl 2h")
    assert run(f"namespaces get-message-ttl {namespace}").json == 7200
    topic = f"{namespace}/t"
    run(f"topics create {topic}")
    run(f"topics set-message-ttl {topic} --ttl 90s")
    assert run(f"topics get-message-ttl {topic}").json == 90
    run(f"topics remove-message-ttl {topic}")
    assert run(f"topics get-message-ttl {topic} --applied").json == 7200
    run(f"namespaces remove-message-ttl {namespace}")
    assert run(f"namespaces get-message-ttl {namespace}").json is None


@pytest.mark.parametrize(
    ("given", "shown", "in_seconds"), [("500ms", "500ms", 1), ("0ms", "0ms", 1), ("1500ms", "1500ms", 2), ("0", 0, 0)]
)
def test_a_ttl_below_a_second_is_set_and_shown_at_every_level(
    broker: BrokerProcess, run: Run, namespace: str, given: str, shown: object, in_seconds: int
) -> None:
    topic = f"{namespace}/t"
    run(f"topics create {topic}")
    for level, option, path in (
        (f"namespaces %s {namespace}", "--messageTTL", f"/admin/v2/namespaces/{namespace}"),
        (f"topics %s {topic}", "--ttl", f"/admin/v2/persistent/{topic}"),
        (f"subscriptions %s {topic} -s s", "--ttl", f"/heliograph/v1/persistent/{topic}/subscription/s"),
    ):
        run(f"{level % 'set-message-ttl'} {option} {given}")
        assert run(level % "get-message-ttl").json == shown
        # As Pulsar's tools read it: 0 only where messages never expire.
        assert call(f"{broker.http_url}{path}/messageTTL") == in_seconds
    assert run(f"topics get-message-ttl {topic} --applied").json == shown
    run(f"topics remove-message-ttl {topic}")
    assert run(f"topics get-message-ttl {topic}").json is None


def filled(client: pulsar.Client, run: Run, topic: str, *subscriptions: str, messages: int = 5) -> None:
    """Make subscriptions on a topic and publish messages m0, m1, … that wait for each of them."""
    for name in subscriptions:
        run(f"topics create-subscription {topic} -s {name}")
    producer = client.create_producer(f"persistent://{topic}", batching_enabled=False)
    for index in range(messages):
        producer.send(f"m{index}".encode(), properties={"n": str(index)})
    producer.close()


def waiting(run: Run, topic: str) -> dict[str, int]:
    """Return the backlog by subscription."""
    stats = run(f"topics stats {topic} -o json").json
    return {name: stats["msgBacklog"] for name, stats in stats["subscriptions"].items()}


def test_cookbook_clear_backlog_asks_first(run: Run, namespace: str, client: pulsar.Client) -> None:
    topic = f"{namespace}/t"
    run(f"topics create {topic}")
    filled(client, run, topic, "a", "b")
    asked = run(f"namespaces clear-backlog {namespace}", answer="n\n", code=1)
    assert f"Clear the backlog of all topics of {namespace}?" in asked.out
    assert "nothing was cleared" in asked.err
    run(f"namespaces clear-backlog {namespace}", code=1)
    assert waiting(run, topic) == {"a": 5, "b": 5}
    run(f"namespaces clear-backlog {namespace} --sub a", answer="y\n")
    assert waiting(run, topic) == {"a": 0, "b": 5}
    run(f"namespaces clear-backlog {namespace} -f")
    assert waiting(run, topic) == {"a": 0, "b": 0}


def _rows(policies: tuple[Policy, ...]) -> list[Any]:
    return [pytest.param(policy, id=policy.name) for policy in policies]


@pytest.mark.parametrize("policy", _rows(NAMESPACE_POLICIES))
def test_every_policy_of_a_namespace_is_set_printed_and_removed(run: Run, namespace: str, policy: Policy) -> None:
    _round_trip(run, "namespaces", namespace, policy, "")


@pytest.mark.parametrize("policy", _rows(TOPIC_POLICIES))
def test_every_policy_of_a_topic_is_set_printed_and_removed(run: Run, namespace: str, policy: Policy) -> None:
    run(f"topics create {namespace}/orders")
    _round_trip(run, "topics", f"{namespace}/orders", policy, "--applied")


@pytest.mark.parametrize("policy", _rows(SUBSCRIPTION_POLICIES))
def test_every_policy_of_a_subscription_is_set_printed_and_removed(run: Run, namespace: str, policy: Policy) -> None:
    run(f"topics create {namespace}/orders")
    _round_trip(run, "subscriptions", f"{namespace}/orders -s a/b", policy, "--applied")


def _round_trip(run: Run, group: str, where: str, policy: Policy, applied: str) -> None:
    get = f"{group} get-{policy.get_name or policy.name} {where}"
    before = run(get).json
    run(f"{group} set-{policy.name} {where} {policy.example}")
    after = run(get).json
    assert after not in (None, {}, [], before)
    if applied:
        shown = run(f"{get} {applied}").json
        # The broker's default quotas are shown, too.
        assert shown == after or {name: shown[name] for name in after} == after
    if not policy.removable:
        return
    quota = " --type message_age" if "message_age" in policy.example else ""
    run(f"{group} remove-{policy.name} {where}{quota}")
    assert run(get).json == before


def test_tenants(run: Run) -> None:
    name = fresh_name("tenant")
    assert run(f"tenants create {name} --admin-roles ops,dev").out == f"tenant/{name} created\n"
    assert name in run("tenants list").out.splitlines()
    (cluster,) = run("clusters list").out.splitlines()
    assert run(f"tenants get {name}").json == {"adminRoles": ["ops", "dev"], "allowedClusters": [cluster]}
    run(f"tenants update {name} -r ops -c {cluster}")
    assert run(f"tenants get {name}").json["adminRoles"] == ["ops"]
    run(f"namespaces create {name}/a --bundles 8")
    assert run(f"namespaces policies {name}/a").json["bundles"]["numBundles"] == 8
    assert run(f"namespaces list {name}").out == f"{name}/a\n"
    run(f"tenants delete {name}", code=1)
    run(f"namespaces delete {name}/a")
    run(f"tenants delete {name}")
    assert name not in run("tenants list").out.splitlines()


def test_brokers_and_clusters(run: Run, broker: BrokerProcess) -> None:
    address = broker.http_url.removeprefix("http://")
    (cluster,) = run("clusters list").out.splitlines()
    assert run("brokers list").out == run(f"brokers list {cluster}").out == f"{address}\n"
    assert run("brokers healthcheck").out == "ok\n"
    assert run("brokers version").out.strip()
    assert run("brokers leader-broker").json["serviceUrl"] == broker.http_url
    assert run("brokers quarantine").out == "no ledger is in quarantine\n"
    assert run(f"clusters get {cluster}").json["brokerServiceUrl"] == broker.service_url


def test_topics_and_partitions(run: Run, namespace: str, broker: BrokerProcess) -> None:
    parts, plain = f"{namespace}/parts", f"{namespace}/plain"
    run(f"topics create {plain}")
    run(f"topics create-partitioned-topic {parts} --partitions 2")
    assert run(f"topics list-partitioned-topics {namespace}").out == f"persistent://{parts}\n"
    run(f"topics update-partitioned-topic {parts} -p 3")
    assert run(f"topics get-partitioned-topic-metadata {parts}").json["partitions"] == 3
    listed = run(f"namespaces topics {namespace}").out.splitlines()
    assert listed == [*(f"persistent://{parts}-partition-{index}" for index in range(3)), f"persistent://{plain}"]
    stats = run(f"topics partitioned-stats {parts} --per-partition").json
    assert len(stats["partitions"]) == 3
    assert run(f"topics partitioned-stats {parts}").json["partitions"] == {}
    assert run(f"topics stats-internal {plain}").json["numberOfEntries"] == 0
    assert run(f"topics damaged {plain}").out == "no damaged entries were found\n"
    assert run(f"topics lookup {plain}").out == f"{broker.service_url}\n"
    run(f"topics unload {plain}")
    run(f"namespaces unload {namespace}")
    run(f"topics delete-partitioned-topic {parts}")
    run(f"topics delete {plain}")
    assert run(f"namespaces topics {namespace}").out == ""
    run(f"namespaces delete {namespace}")


def test_subscriptions_are_moved_and_emptied(run: Run, namespace: str, client: pulsar.Client) -> None:
    topic = f"{namespace}/t"
    run(f"topics create {topic}")
    run(f"namespaces set-retention {namespace} --size -1 --time -1")
    filled(client, run, topic, "a", "b")
    assert run(f"topics subscriptions {topic}").out.split() == ["a", "b"]
    assert run(f"topics peek-messages {topic} -s a -n 2").out == "m0\nm1\n"
    run(f"topics skip {topic} -s a -n 2")
    assert waiting(run, topic) == {"a": 3, "b": 5}
    shown = json.loads(run(f"topics peek-messages {topic} -s a -o json").out)
    assert (shown["value"], shown["properties"]) == ("m2", {"n": "2"})
    run(f"topics expire-messages {topic} -s a --position {shown['id']}")
    assert waiting(run, topic)["a"] == 2
    run(f"topics expire-messages {topic} -s a --expireTime 1h")
    assert waiting(run, topic)["a"] == 2
    run(f"topics clear-backlog {topic} -s a")
    assert waiting(run, topic) == {"a": 0, "b": 5}
    run(f"topics reset-cursor {topic} -s a --messageId earliest")
    assert waiting(run, topic) == {"a": 5, "b": 5}
    run(f"topics reset-cursor {topic} -s a --messageId latest")
    assert waiting(run, topic)["a"] == 0
    run(f"topics reset-cursor {topic} -s a --time 1h")
    assert waiting(run, topic)["a"] == 5
    run(f"topics create-subscription {topic} -s c -m {shown['id']}")
    assert waiting(run, topic)["c"] in (2, 3)
    run(f"topics create-subscription {topic} -s d -m earliest")
    assert waiting(run, topic)["d"] == 5
    run(f"topics unsubscribe {topic} -s d")
    run(f"namespaces unsubscribe {namespace} --sub c")
    assert run(f"topics subscriptions {topic}").out.split() == ["a", "b"]
    run(f"topics truncate {topic}")
    assert waiting(run, topic) == {"a": 0, "b": 0}


def test_batches_are_peeked_message_by_message(run: Run, namespace: str, client: pulsar.Client) -> None:
    topic = f"{namespace}/t"
    run(f"topics create-subscription {topic} -s s")
    producer = client.create_producer(
        f"persistent://{topic}", batching_enabled=True, batching_max_publish_delay_ms=BATCH_WAITS_MS
    )
    for index in range(5):
        producer.send_async(f"m{index}".encode(), lambda result, message_id: None, properties={"n": str(index)})
    producer.flush()
    producer.close()
    shown = [json.loads(line) for line in run(f"topics peek-messages {topic} -s s -n 9 -o json").out.splitlines()]
    assert [(message["value"], message["properties"]) for message in shown] == [
        (f"m{index}", {"n": str(index)}) for index in range(5)
    ]
    assert waiting(run, topic) == {"s": 5}


def test_topics_end_and_are_compacted(run: Run, namespace: str, client: pulsar.Client) -> None:
    topic = f"{namespace}/t"
    run(f"topics create {topic}")
    assert run(f"topics compaction-status {topic}").out == "NOT_RUN\n"
    filled(client, run, topic, "a", messages=3)
    last = run(f"topics last-message-id {topic}").json
    assert last["entryId"] == 2
    run(f"topics compact {topic}")
    assert run(f"topics compaction-status {topic} --wait-complete").out == "SUCCESS\n"
    ended = run(f"topics terminate {topic}").out
    assert ended == f"topic/persistent://{topic} terminated after {last['ledgerId']}:{last['entryId']}\n"
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(f"persistent://{topic}")
    parts = f"{namespace}/parts"
    run(f"topics create {parts} -p 2")
    assert len(run(f"topics terminate {parts}").out.splitlines()) == 2


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("namespaces set-retention NS --size 10G", 2, "--time"),
        ("namespaces set-retention NS --size 10X --time 3h", 2, "'10X' is not a size; valid: 10G"),
        ("namespaces set-retention NS --size 10G --time 3y", 2, "'3y' is not a duration; valid: 500ms, 90s"),
        ("namespaces set-retention NS --size 1500K --time 3h", 2, "whole number of megabytes"),
        ("namespaces set-retention NS --size 1G --time 90s", 2, "whole number of minutes"),
        ("namespaces set-retention NS --size 1G --time 0", 1, "a single time or size limit to 0 is invalid"),
        ("namespaces set-backlog-quota NS --limit 2G", 2, "--policy"),
        ("namespaces set-backlog-quota NS --limit 2G --policy hold", 2, "one of producer_request_hold,"),
        ("namespaces set-backlog-quota NS -lt 60 -p producer_exception", 2, "belongs to --type message_age"),
        ("namespaces set-backlog-quota NS -l 1G -t message_age -p producer_exception", 2, "takes --limitTime"),
        ("namespaces set-backlog-quota NS -l 1G -t storage -p producer_exception", 2, "destination_storage"),
        ("namespaces remove-backlog-quota NS --type both", 2, "destination_storage, message_age"),
        ("namespaces set-message-ttl NS", 2, "--messageTTL"),
        ("namespaces set-message-ttl NS --messageTTL soon", 2, "'soon' is not a duration"),
        ("namespaces set-deduplication NS", 2, "either --enable or --disable"),
        ("namespaces set-max-producers-per-topic NS -p many", 2, "'many' is not a number; valid: 0 (no limit)"),
        ("namespaces set-subscription-types-enabled NS -t Sharred", 2, "Exclusive, Shared, Failover, Key_Shared"),
        ("namespaces set-auto-topic-creation NS -e -t partitioned", 2, "--num-partitions"),
        ("namespaces get-retention my-ns", 2, "tenant/namespace"),
        ("namespaces get-retention none/such", 1, "'heliograph namespaces list none' shows what there is"),
        ("namespaces create NS", 1, "already exists"),
        ("namespaces create none-such/a", 1, "Tenant does not exist"),
        ("namespaces list none-such", 1, "'heliograph tenants list' shows"),
        ("tenants create a/b", 1, "letters, digits"),
        ("tenants create acme-x --allowed-clusters nope", 1, "Clusters do not exist"),
        ("topics set-retention NS/none --size 1G --time 1h", 1, "'heliograph topics list"),
        ("topics expire-messages NS/t -s s", 2, "either --expireTime TIME or --position"),
        ("topics expire-messages NS/t -s s -t 0", 2, "is not an age"),
        ("topics reset-cursor NS/t -s s", 2, "either --time TIME or --messageId ID"),
        ("topics reset-cursor NS/t -s s -m 12", 2, "latest, earliest or LEDGER:ENTRY"),
        ("topics skip NS/t -s s -n 0", 2, "--count"),
        ("topics skip NS/t -s s -n 1", 1, "not found"),
        ("topics compact-it NS/t", 2, "compact-it"),
    ],
)
def test_mistakes_are_named(run: Run, namespace: str, command: str, code: int, message: str) -> None:
    failed = run(command.replace("NS", namespace), code=code)
    # Long messages are wrapped.
    assert message in " ".join(failed.err.split())
    assert failed.out == ""


@pytest.mark.parametrize("group", ["tenants", "namespaces", "topics", "brokers", "clusters"])
def test_every_command_teaches_with_examples(run: Run, group: str) -> None:
    import typer
    from heliograph_broker.cli.main import app

    shown = typer.main.get_command(app)
    commands = shown.commands[group].commands  # type: ignore[attr-defined]
    for name in commands:
        text = run(f"{group} {name} --help").out
        assert "Examples:" in text, name
        if not commands[name].hidden or name.startswith(("get-", "remove-")):
            assert f"heliograph {group} {name}" in text, name
