"""A broker with authentication: who its clients are, what they may do, and how long both hold."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from heliograph_api.protocol import wire_pb2 as wire

from tests.support.broker_process import BrokerProcess
from tests.support.clients import DEADLINE_MS, connect, fresh_name
from tests.support.polling import eventually
from tests.support.token_specimens import pair, signed, verifying
from tests.support.tokens import CHECK_EVERY_S, SHORT_S, Signer, ask
from tests.support.wire_client import ConnectionEndedError, Type, WireClient, WireError

ADMIN = "admin"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that only knows tokens, checks for expired ones every few seconds, and has one proxy."""
    settings = signer.settings(
        superusers=ADMIN,
        proxies="gate",
        auth_refresh_check_s=str(CHECK_EVERY_S),
    )
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=settings) as running:
        yield running


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/{fresh_name()}"


def grant(broker: BrokerProcess, signer: Signer, topic: str, role: str, *actions: str) -> None:
    """Grant a role actions on a topic, which is made if it is not there."""
    path = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}"
    token = signer.token(ADMIN)
    assert ask(path, token, "PUT").status in (204, 409)
    assert ask(f"{path}/permissions/{role}", token, "POST", list(actions)).status == 204


def revoke(broker: BrokerProcess, signer: Signer, topic: str, role: str) -> None:
    path = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/permissions/{role}"
    assert ask(path, signer.token(ADMIN), "DELETE").status == 204


def with_token(broker: BrokerProcess, token: str | Callable[[], str]) -> pulsar.Client:
    return connect(broker.service_url, authentication=pulsar.AuthenticationToken(token))


def refusal_of_connect(broker: BrokerProcess, code: int = wire.AuthenticationError, **fields: Any) -> str:
    """Return the reason for which a CONNECT is refused with an error; the connection ends."""
    with WireClient(broker.service_url, connect=False) as client:
        client.send(Type.CONNECT, client_version="test", protocol_version=21, **fields)
        error = client.expect(Type.ERROR).body
        assert error.error == code
        with pytest.raises(ConnectionEndedError):
            client.expect(Type.CONNECTED)
        return str(error.message)


def of_token(token: str) -> dict[str, Any]:
    return {"auth_method_name": "token", "auth_data": token.encode()}


def test_a_client_without_credentials_is_refused(closed: BrokerProcess, topic: str) -> None:
    client = connect(closed.service_url, operation_timeout_seconds=3)
    # This client tries again after any refusal of CONNECT, also of a Pulsar's.
    with pytest.raises(pulsar.Timeout):
        client.create_producer(topic)
    client.close()
    assert refusal_of_connect(closed) == "authentication is required: connect with credentials; valid here: token"


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("basic", "authentication by basic is not switched on here; valid here: token"),
        ("tls", "authentication by tls is not switched on here; valid here: token"),
        ("athenz", "Heliograph does not have Pulsar's authentication by athenz; valid here: token"),
        ("sasl", "Heliograph does not have Pulsar's authentication by sasl; valid here: token"),
        ("magic", "Heliograph does not have this authentication method; valid here: token"),
    ],
)
def test_a_method_that_is_not_there_is_refused_by_name(closed: BrokerProcess, method: str, reason: str) -> None:
    assert refusal_of_connect(closed, auth_method_name=method, auth_data=b"x") == reason


def test_a_token_that_is_false_or_expired_is_refused_with_the_reason(
    closed: BrokerProcess, signer: Signer, tmp_path: Path
) -> None:
    foreign = Signer(tmp_path / "other.key", b"another secret that this broker does not know")
    assert "not signed by a key that this broker trusts" in refusal_of_connect(closed, **of_token(foreign.token(ADMIN)))
    assert "the token expired at" in refusal_of_connect(closed, **of_token(signer.token(ADMIN, expires_in_s=-60)))
    assert "not a JWT" in refusal_of_connect(closed, **of_token("x"))


def test_nothing_is_handled_before_the_client_is_known(closed: BrokerProcess) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        client.send(Type.LOOKUP, topic="t", request_id=1)
        assert "the first command must be CONNECT" in client.expect(Type.ERROR).body.message


def test_a_superuser_may_do_everything_and_nobody_else_anything(
    closed: BrokerProcess, signer: Signer, topic: str
) -> None:
    admin = with_token(closed, signer.token(ADMIN))
    consumer = admin.subscribe(topic, "s")
    admin.create_producer(topic).send(b"x")
    assert consumer.receive(DEADLINE_MS).data() == b"x"
    other = with_token(closed, signer.token("somebody"))
    with pytest.raises(pulsar.AuthorizationError):
        other.create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        other.subscribe(topic, "s2")
    other.close()
    admin.close()


def test_grants_open_a_topic_for_a_role_and_for_what_they_say_only(
    closed: BrokerProcess, signer: Signer, topic: str
) -> None:
    grant(closed, signer, topic, "billing", "produce")
    client = with_token(closed, signer.token("billing"))
    client.create_producer(topic).send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe(topic, "s")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer(topic + "-other")
    client.close()


def test_a_role_that_loses_its_right_loses_its_producers_and_consumers(
    closed: BrokerProcess, signer: Signer, topic: str
) -> None:
    grant(closed, signer, topic, "billing", "produce", "consume")
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(signer.token("billing"))
        client.send(Type.PRODUCER, topic=topic, producer_id=1, request_id=1)
        client.expect(Type.PRODUCER_SUCCESS)
        client.send(Type.SUBSCRIBE, topic=topic, subscription="s", subType=0, consumer_id=2, request_id=2)
        client.expect(Type.SUCCESS)
        revoke(closed, signer, topic, "billing")
        assert client.expect(Type.CLOSE_PRODUCER).body.producer_id == 1
        assert client.expect(Type.CLOSE_CONSUMER).body.consumer_id == 2
        client.send(Type.PRODUCER, topic=topic, producer_id=3, request_id=3)
        error = client.expect(Type.ERROR).body
        assert error.error == wire.AuthorizationError
        assert "role 'billing' may not produce to" in error.message


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Type.SEEK, {"message_publish_time": 0}),
        (Type.UNSUBSCRIBE, {}),
        (Type.GET_LAST_MESSAGE_ID, {}),
        (Type.CONSUMER_STATS, {}),
    ],
)
def test_a_consumer_whose_right_is_revoked_does_nothing_more_though_it_is_still_open(
    closed: BrokerProcess, signer: Signer, topic: str, kind: int, fields: dict[str, Any]
) -> None:
    """Consumers are closed within a second; until then, these commands are refused."""
    for number in range(5):
        grant(closed, signer, topic, "billing", "consume")
        with WireClient(closed.service_url, connect=False) as client:
            client.authenticate(signer.token("billing"))
            consumer = client.subscribe(topic, f"s{number}")
            revoke(closed, signer, topic, "billing")
            if kind == Type.CONSUMER_STATS:
                answer = client.request(kind, Type.CONSUMER_STATS_RESPONSE, consumer_id=consumer)
                assert answer.error_code in (wire.AuthorizationError, wire.ConsumerNotFound)
                assert not answer.consumerName
            else:
                with pytest.raises(WireError) as refused:
                    client.request(kind, Type.SUCCESS, consumer_id=consumer, **fields)
                # The latter if the consumer has been closed.
                assert refused.value.code in (wire.AuthorizationError, wire.MetadataError)
            if not number:
                closing = [frame for frame in client.inbox if frame.command.type == Type.CLOSE_CONSUMER]
                assert closing or client.expect(Type.CLOSE_CONSUMER).body.consumer_id == consumer
    path = f"{closed.http_url}/admin/v2/{topic.replace('://', '/')}/subscriptions"
    assert sorted(ask(path, signer.token(ADMIN)).body) == [f"s{number}" for number in range(5)]


def test_an_official_client_renews_its_token_on_the_open_connection(
    closed: BrokerProcess, signer: Signer, topic: str
) -> None:
    grant(closed, signer, topic, "renewing", "produce", "consume")
    asked = threading.Semaphore(0)

    def supply() -> str:
        asked.release()
        return signer.token("renewing", expires_in_s=SHORT_S)

    client = with_token(closed, supply)
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    connected_since = producer_of(closed, signer, topic)["connectedSince"]
    # For CONNECT of each connection, and then for challenges.
    for number in range(4):
        assert asked.acquire(timeout=60)
        producer.send(b"%d" % number)
        assert consumer.receive(DEADLINE_MS).data() == b"%d" % number
    assert producer_of(closed, signer, topic)["connectedSince"] == connected_since
    client.close()


def producer_of(broker: BrokerProcess, signer: Signer, topic: str) -> dict[str, Any]:
    path = f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}/stats"
    (only,) = ask(path, signer.token(ADMIN)).body["publishers"]
    return dict(only)


def test_a_client_that_cannot_renew_its_token_is_told_so_after_a_grace(closed: BrokerProcess, signer: Signer) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        token = signer.token(ADMIN, expires_in_s=SHORT_S)
        client.authenticate(token, client_version="old")
        error = client.expect(Type.ERROR).body
        assert error.error == wire.AuthenticationError
        assert "the client cannot renew them on an open connection: connect again with new ones" in error.message


def renewing(client: WireClient, token: str) -> None:
    client.authenticate(token, feature_flags=wire.FeatureFlags(supports_auth_refresh=True))
    challenge = client.expect(Type.AUTH_CHALLENGE).body
    assert (challenge.challenge.auth_method_name, challenge.challenge.auth_data) == ("token", b"PulsarAuthRefresh")


def test_a_renewed_token_must_be_of_the_same_role(closed: BrokerProcess, signer: Signer) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        renewing(client, signer.token("one", expires_in_s=SHORT_S))
        other = wire.AuthData(auth_method_name="token", auth_data=signer.token(ADMIN).encode())
        client.send(Type.AUTH_RESPONSE, response=other)
        error = client.expect(Type.ERROR).body
        assert error.error == wire.AuthenticationError
        assert error.message == "the new credentials are of another role: connect again with them"


def test_a_client_that_does_not_answer_the_challenge_is_closed(closed: BrokerProcess, signer: Signer) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        renewing(client, signer.token("one", expires_in_s=SHORT_S))
        assert "the client did not renew them" in client.expect(Type.ERROR).body.message


def test_a_response_that_nobody_asked_for_is_a_protocol_error(closed: BrokerProcess, signer: Signer) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(signer.token(ADMIN))
        client.send(Type.AUTH_RESPONSE, response=wire.AuthData(auth_method_name="token", auth_data=b"x"))
        assert "AUTH_RESPONSE without an AUTH_CHALLENGE" in client.expect(Type.ERROR).body.message


def test_a_proxy_speaks_for_others_and_never_for_itself(closed: BrokerProcess, signer: Signer, topic: str) -> None:
    gate = of_token(signer.token("gate"))
    for principal in ({}, {"original_principal": "gate"}):
        reason = refusal_of_connect(closed, wire.AuthorizationError, **gate, **principal)
        assert "a proxy names the role that it speaks for" in reason
    liar = of_token(signer.token("somebody")) | {"original_principal": ADMIN}
    assert refusal_of_connect(closed, wire.AuthorizationError, **liar) == "only a proxy may speak for another role"
    grant(closed, signer, topic, "gate", "produce")
    with WireClient(closed.service_url, connect=False) as client:
        client.send(Type.CONNECT, client_version="test", protocol_version=21, original_principal="behind", **gate)
        client.expect(Type.CONNECTED)
        client.send(Type.PRODUCER, topic=topic, producer_id=1, request_id=1)
        assert client.expect(Type.ERROR).body.error == wire.AuthorizationError
        grant(closed, signer, topic, "behind", "produce")
        client.send(Type.PRODUCER, topic=topic, producer_id=1, request_id=2)
        client.expect(Type.PRODUCER_SUCCESS)
        client.send(Type.LOOKUP, topic=topic, request_id=3, original_principal=ADMIN)
        assert client.expect(Type.LOOKUP_RESPONSE).body.error == wire.AuthorizationError


def test_a_proxy_may_send_the_credentials_of_its_client(closed: BrokerProcess, signer: Signer) -> None:
    gate = of_token(signer.token("gate"))
    with WireClient(closed.service_url, connect=False) as client:
        client.send(
            Type.CONNECT,
            client_version="test",
            protocol_version=21,
            original_principal="behind",
            original_auth_data=signer.token("behind"),
            original_auth_method="token",
            **gate,
        )
        client.expect(Type.CONNECTED)
    assert "not that of the original credentials" in refusal_of_connect(
        closed,
        wire.AuthorizationError,
        **gate,
        original_principal=ADMIN,
        original_auth_data=signer.token("behind"),
        original_auth_method="token",
    )


def test_refusals_have_the_form_of_each_request(closed: BrokerProcess, signer: Signer, topic: str) -> None:
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(signer.token("nobody"))
        client.send(Type.LOOKUP, topic=topic, request_id=1)
        assert client.expect(Type.LOOKUP_RESPONSE).body.error == wire.AuthorizationError
        client.send(Type.PARTITIONED_METADATA, topic=topic, request_id=2)
        assert client.expect(Type.PARTITIONED_METADATA_RESPONSE).body.error == wire.AuthorizationError
        client.send(Type.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=3)
        assert client.expect(Type.ERROR).body.error == wire.AuthorizationError
        client.send(Type.WATCH_TOPIC_LIST, namespace="public/default", topics_pattern=".*", watcher_id=1, request_id=4)
        assert client.expect(Type.ERROR).body.error == wire.AuthorizationError
        client.send(Type.GET_SCHEMA, topic=topic, request_id=5)
        assert client.expect(Type.GET_SCHEMA_RESPONSE).body.error_code == wire.AuthorizationError
        client.send(
            Type.GET_OR_CREATE_SCHEMA,
            topic=topic,
            request_id=6,
            schema=wire.Schema(name="s", schema_data=b"", type=wire.Schema.String),
        )
        assert client.expect(Type.GET_OR_CREATE_SCHEMA_RESPONSE).body.error_code == wire.AuthorizationError


def test_an_initial_subscription_needs_the_right_to_consume(closed: BrokerProcess, signer: Signer, topic: str) -> None:
    grant(closed, signer, topic, "billing", "produce")
    with WireClient(closed.service_url, connect=False) as client:
        client.authenticate(signer.token("billing"))
        client.send(Type.PRODUCER, topic=topic, producer_id=1, request_id=1, initial_subscription_name="s")
        assert client.expect(Type.ERROR).body.error == wire.AuthorizationError


def test_http_and_metrics_need_a_token_and_probes_do_not(closed: BrokerProcess, signer: Signer) -> None:
    url = closed.http_url
    for path in ("/admin/v2/tenants", "/metrics", "/admin/v2/brokers/configuration", "/no/such/path"):
        assert ask(url + path).status == 401, path
        assert ask(url + path, "not a token").status == 401, path
        assert ask(url + path, signer.token("somebody")).status in (403, 404), path
        assert ask(url + path, signer.token(ADMIN)).status in (200, 404), path
    for path in ("/health/live", "/health/ready"):
        assert ask(url + path).status == 200


def test_refused_clients_are_counted_and_their_secrets_not_logged(closed: BrokerProcess, signer: Signer) -> None:
    false = signer.token("somebody", expires_in_s=-60)
    refusal_of_connect(closed, **of_token(false))

    def counted() -> bool:
        text = ask(f"{closed.http_url}/metrics", signer.token(ADMIN)).body
        lines = [line for line in text.splitlines() if line.startswith("heliograph_authentications_total")]
        failures = [line for line in lines if 'method="token"' in line and 'outcome="failure"' in line]
        return bool(failures) and float(failures[0].rpartition(" ")[2]) >= 1

    eventually(counted)
    log = closed.log_path.read_text()
    assert false not in log
    assert false.rpartition(".")[2] not in log
    assert "the token expired at" in log


def test_bad_tokens_in_a_flood_do_not_stop_a_client_that_is_known(
    closed: BrokerProcess, signer: Signer, topic: str
) -> None:
    admin = with_token(closed, signer.token(ADMIN))
    consumer, producer = admin.subscribe(topic, "s"), admin.create_producer(topic)
    ended = threading.Event()
    refused = 0

    def flood() -> None:
        nonlocal refused
        while not ended.is_set():
            refusal_of_connect(closed, **of_token("x.y.z"))
            refused += 1

    attackers = [threading.Thread(target=flood) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    try:
        for number in range(200):
            producer.send(b"%d" % number)
            assert consumer.receive(DEADLINE_MS).data() == b"%d" % number
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join()
    assert refused > 4
    admin.close()


def test_tokens_of_foreign_keys_in_a_flood_are_verified_and_a_client_that_is_known_goes_on(
    broker_factory: Callable[..., BrokerProcess], signer: Signer, tmp_path: Path, topic: str
) -> None:
    """4,000 tokens as requests on open connections of HTTP, and 400 as CONNECT, with RSA and with a secret."""
    public = tmp_path / "public.pem"
    public.write_bytes(verifying("RS256"))
    broker = broker_factory(environment=signer.settings(superusers=ADMIN, token_public_key=str(public)))
    broker.start()
    foreign = Signer(tmp_path / "foreign.key", b"another secret that this broker does not know")
    claims = {"sub": ADMIN}
    own = signed("RS256", claims)
    of_rsa = [signed("RS256", claims | {"number": number}, pair("RS256", 1).private).decode() for number in range(20)]
    of_secret = [foreign.token(ADMIN, number=number) for number in range(20)]
    admin = with_token(broker, own.decode())
    consumer, producer = admin.subscribe(topic, "s"), admin.create_producer(topic)
    refused, errors = [0] * 4, list[str]()

    def by_http(number: int, tokens: list[str]) -> None:
        url = urlsplit(broker.http_url)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        for turn in range(2000):
            headers = {"Authorization": f"Bearer {tokens[turn % len(tokens)]}"}
            connection.request("GET", "/admin/v2/tenants", headers=headers)
            answer = connection.getresponse()
            answer.read()
            refused[number] += answer.status == 401
        connection.close()

    def by_connect(number: int, tokens: list[str]) -> None:
        for turn in range(200):
            errors.append(refusal_of_connect(broker, **of_token(tokens[turn % len(tokens)])))
            refused[number] += 1

    attacks = ((by_http, of_rsa), (by_http, of_secret), (by_connect, of_rsa), (by_connect, of_secret))
    attackers = [threading.Thread(target=run, args=(number, tokens)) for number, (run, tokens) in enumerate(attacks)]
    for attacker in attackers:
        attacker.start()
    went_on = 0
    while went_on < 50 or any(attacker.is_alive() for attacker in attackers):
        producer.send(b"%d" % went_on)
        assert consumer.receive(20_000).data() == b"%d" % went_on
        went_on += 1
    for attacker in attackers:
        attacker.join()
    admin.close()
    assert refused == [2000, 2000, 200, 200]
    assert len(set(errors)) == 1
    failures = next(
        float(line.split()[1])
        for line in ask(f"{broker.http_url}/metrics", signer.token(ADMIN)).body.splitlines()
        if line.startswith('heliograph_authentications_total{method="token",outcome="failure"}')
    )
    assert failures == 4400


def test_a_removed_key_ends_those_who_have_nothing_better_to_show(
    broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    first, second = (
        Signer(tmp_path / "1.key"),
        Signer(tmp_path / "2.key", b"the second secret, which comes as the first goes"),
    )
    both = f"{first.path},{second.path}"
    environment = {"HELIOGRAPH_AUTH": "token", "HELIOGRAPH_TOKEN_SECRET_KEY": both, "HELIOGRAPH_SUPERUSERS": ADMIN}
    broker = broker_factory(environment=environment | {"HELIOGRAPH_AUTH_REFRESH_CHECK_S": str(CHECK_EVERY_S)})
    broker.start()
    signing = first
    clients = [with_token(broker, lambda: signing.token(ADMIN)), with_token(broker, second.token(ADMIN))]
    topics = [f"persistent://public/default/{fresh_name()}" for _ in clients]
    producers = [client.create_producer(topic) for client, topic in zip(clients, topics, strict=True)]
    since = [producer_of(broker, second, topic)["connectedSince"] for topic in topics]
    with WireClient(broker.service_url, connect=False) as old:
        old.send(Type.CONNECT, client_version="old", protocol_version=21, **of_token(first.token(ADMIN)))
        old.expect(Type.CONNECTED)
        signing = second
        first.path.write_bytes(second.path.read_bytes())
        error = old.expect(Type.ERROR).body
        assert error.error == wire.AuthenticationError
        assert "a key that credentials are verified with was removed" in error.message
    for producer in producers:
        producer.send(b"x")
    assert [producer_of(broker, second, topic)["connectedSince"] for topic in topics] == since
    assert "not signed by a key" in refusal_of_connect(broker, **of_token(first.token(ADMIN)))
    for client in clients:
        client.close()


def test_a_role_has_a_limited_number_of_connections(
    broker_factory: Callable[..., BrokerProcess], signer: Signer
) -> None:
    environment = {
        "HELIOGRAPH_AUTH": "token",
        "HELIOGRAPH_TOKEN_SECRET_KEY": str(signer.path),
        "HELIOGRAPH_MAX_CONNECTIONS_PER_ROLE": "2",
    }
    broker = broker_factory(environment=environment)
    broker.start()

    def connected(role: str) -> WireClient:
        client = WireClient(broker.service_url, connect=False)
        client.send(Type.CONNECT, client_version="test", protocol_version=21, **of_token(signer.token(role)))
        return client

    with connected("one") as first, connected("one") as second, connected("two") as other:
        for client in (first, second, other):
            client.expect(Type.CONNECTED)
        with connected("one") as third:
            error = third.expect(Type.ERROR).body
            assert error.error == wire.NotAllowedError
            assert error.message.endswith("of a role: 2 (max_connections_per_role)")
        second.close()

        def has_room() -> bool:
            with connected("one") as again:
                return again.read_frame().command.type == Type.CONNECTED

        eventually(has_room)
