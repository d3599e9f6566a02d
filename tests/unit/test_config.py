"""The broker's settings: defaults as documented, and nothing out of range."""

from __future__ import annotations

import re
from typing import Any

import pytest
from heliograph_api.broker_config import BrokerConfig
from heliograph_api.resources.fields import Contradiction
from heliograph_api.resources.settings import check_settings
from heliograph_api.values.issuers import parse_audiences
from heliograph_api.values.listeners import parse_advertised_listeners, parse_bind_addresses


def test_defaults_are_pulsars_where_pulsar_has_them() -> None:
    config = BrokerConfig()
    assert (config.broker_port, config.http_port) == (6650, 8080)
    assert config.max_message_size == 5 * 1024 * 1024
    assert config.keep_alive_interval_s == 30
    assert (config.max_unacked_per_consumer, config.max_unacked_per_subscription) == (50_000, 200_000)
    assert (config.ledger_max_entries, config.ledger_max_age_ms) == (50_000, 240 * 60_000)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("broker_port", 65536, "broker_port: 65536 is out of range; valid: 0 to 65535"),
        ("http_port", -1, "http_port: -1 is out of range; valid: 0 to 65535"),
        ("max_message_size", 0, "max_message_size: 0 is out of range; valid: 1 or more"),
        ("ledger_max_entries", 0, "ledger_max_entries: 0 is out of range; valid: 1 or more"),
        ("default_partitions", -1, "default_partitions: -1 is out of range; valid: 0 or more"),
        ("keep_alive_interval_s", 0.0, "keep_alive_interval_s: 0.0 is out of range; valid: above 0"),
        ("metrics_level", "all", "metrics_level: 'all' is out of range; valid: topic, namespace, broker"),
        ("keep_alive_interval_s", float("nan"), "keep_alive_interval_s: nan is out of range"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match="is out of range") as caught:
        BrokerConfig(**{setting: value})
    assert words in str(caught.value)


def test_settings_from_the_environment() -> None:
    environment = {"HELIOGRAPH_LEDGER_MAX_ENTRIES": "10", "HELIOGRAPH_HTTP_PORT": "1", "LEDGER_MAX_AGE_MS": "3"}
    config = BrokerConfig.from_environment(environment, http_port=2)
    assert (config.ledger_max_entries, config.http_port) == (10, 2)
    assert config.ledger_max_age_ms == BrokerConfig().ledger_max_age_ms


@pytest.mark.parametrize("name", ["HTTP_PORT", "KEEP_ALIVE_INTERVAL_S", "BATCH_INDEX_ACK"])
def test_bytes_in_the_environment_that_are_no_text_are_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name.lower()}: '\\udcff1' is neither a number nor a boolean"):
        BrokerConfig.from_environment({f"HELIOGRAPH_{name}": "\udcff1"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"advertised_listeners": "pulsar://a:1"}, "'pulsar://a:1' is no address with a listener's name; valid: name:"),
        ({"advertised_listeners": "out:pulsar://a"}, "'out:pulsar://a' is no address with a listener's name"),
        ({"advertised_listeners": "out:pulsar://a:1/path"}, "is no address with a listener's name"),
        (
            {"advertised_listeners": "out:http://a:1"},
            "'out:http://a:1' is of the scheme http://, which listeners do not",
        ),
        ({"advertised_listeners": "out:pulsar://a:65536"}, "port 65536 is out of range; valid: 1 to 65535"),
        ({"advertised_listeners": "out:pulsar://a:0"}, "port 0 is out of range"),
        ({"advertised_listeners": "out:pulsar://a:1,out:pulsar://b:1"}, "'out' occurs more than once with pulsar://"),
        (
            {"advertised_listeners": "out:pulsar+ssl://a:1,out:pulsar+ssl://b:1"},
            "'out' occurs more than once with pulsar+ssl://",
        ),
        (
            {"advertised_listeners": "in:pulsar://a:1,out:pulsar+ssl://a:1"},
            "'pulsar+ssl://a:1' is the address of two listeners",
        ),
        (
            {"advertised_listeners": "in:pulsar://a:1,out:pulsar://a:1"},
            "'pulsar://a:1' is the address of two listeners",
        ),
        (
            {"advertised_listeners": "in:pulsar://a:1,out:pulsar://b:1", "internal_listener_name": "inside"},
            "internal_listener_name: 'inside' is none of the advertised_listeners; valid: in, out",
        ),
        (
            {"bind_addresses": "out:pulsar://*:6652"},
            "bind_addresses: 'out' is none of the advertised_listeners; valid: advertised_listeners with this name",
        ),
        ({"bind_addresses": "*:6652"}, "bind_addresses: '*:6652' is no address with a listener's name"),
    ],
)
def test_wrong_listeners_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="; valid: ") as caught:
        BrokerConfig(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize("host", ["fd00::a", "[fd00::a]"])
def test_ipv6_addresses_of_listeners_are_in_brackets_in_urls(host: str) -> None:
    found = parse_advertised_listeners(f"in:pulsar://b.example:6650, out:pulsar://{host}:31000/")
    assert found == {"in": ("pulsar://b.example:6650", ""), "out": ("pulsar://[fd00::a]:31000", "")}
    assert parse_bind_addresses(f"out:pulsar://{host}:31000") == [("out", "fd00::a", 31000, False)]


def test_a_listener_may_have_an_address_with_and_one_without_tls() -> None:
    found = parse_advertised_listeners("in:pulsar://b:6650,out:pulsar+ssl://c:1,in:pulsar+ssl://b:6651")
    assert found == {"in": ("pulsar://b:6650", "pulsar+ssl://b:6651"), "out": ("", "pulsar+ssl://c:1")}
    assert [urls.first for urls in found.values()] == ["pulsar://b:6650", "pulsar+ssl://c:1"]
    assert parse_bind_addresses("out:pulsar+ssl://*:6652") == [("out", "*", 6652, True)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": "tokens"}, "auth: 'tokens' is no method; valid: token, tls, basic, oidc"),
        ({"auth": "tls, Token"}, "auth: 'Token' is no method; valid: token, tls, basic, oidc"),
        ({"auth": "token"}, "auth: token needs a key that tokens are verified with; set token_secret_key or "),
        ({"auth": "tls,token", "token_secret_key": " , "}, "auth: token needs a key"),
        ({"token_secret_key": "a"}, "token_secret_key: needs the method token, which auth does not name; valid: "),
        ({"auth": "tls", "token_public_key": "a"}, "token_public_key: needs the method token"),
        ({"token_audience": "west"}, "token_audience: needs the method token"),
        ({"token_role_claim": ""}, "token_role_claim: is empty; valid: the name of a claim, such as sub"),
    ],
)
def test_wrong_settings_of_authentication_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        BrokerConfig.from_environment({}, **settings)


def test_methods_of_authentication() -> None:
    assert BrokerConfig().auth_methods() == ()
    assert BrokerConfig(auth=" token,tls ", token_public_key="a").auth_methods() == ("token", "tls")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"oidc_issuer": "http://id.example"},
            "oidc_issuer: 'http://id.example' is no URL of an issuer; valid: https:",
        ),
        ({"oidc_issuer": "https://a.example,id.example"}, "oidc_issuer: 'id.example' is no URL of an issuer"),
        (
            {"oidc_issuer": "https://u:p@id.example"},
            "oidc_issuer: one of them has an @, as before a host; valid: https:",
        ),
        ({"oidc_issuer": "https://id.example/?a"}, "is no URL of an issuer"),
        ({"oidc_issuer": "https://id.example:port"}, "is no URL of an issuer"),
        ({"oidc_issuer": "http://127.0.0.1.example"}, "is no URL of an issuer"),
        ({"oidc_role_claim": " "}, "oidc_role_claim: is empty; valid: the name of a claim, such as sub"),
    ],
)
def test_wrong_issuers_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="; valid: ") as caught:
        BrokerConfig(**settings)
    assert words in str(caught.value)


_FILES: dict[str, Any] = {"tls_cert": "a", "tls_key": "b"}
_OUT = {"advertised_listeners": "out:pulsar://a:1"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls_key": "b"}, "tls_key: it needs tls_cert, which is not set; valid: tls_key with tls_cert"),
        ({"tls_cert": "a"}, "tls_cert: it needs tls_key, which is not set; valid: tls_cert with tls_key"),
        ({"tls_client_ca": "c"}, "tls_client_ca: it needs tls_cert"),
        (_FILES | {"tls_require_client_certificate": True}, "tls_require_client_certificate: it needs tls_client_ca"),
        ({"tls_only": True}, "tls_only: it needs tls_cert"),
        (_OUT | {"bind_addresses": "out:pulsar+ssl://*:1"}, "bind_addresses: pulsar+ssl:// needs tls_cert"),
        (
            _OUT | _FILES | {"bind_addresses": "out:pulsar://*:1", "tls_only": True},
            "bind_addresses: pulsar:// is not encrypted, and tls_only is set; valid: pulsar+ssl://",
        ),
    ],
)
def test_settings_of_tls_that_contradict_each_other_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="; valid: ") as caught:
        BrokerConfig(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "issuer",
    [
        "https://id.example",
        "https://id.example:8443/realms/a/",
        "http://127.0.0.1:8080",
        "http://[::1]:1/a",
        "http://localhost",
    ],
)
def test_issuers_are_encrypted_or_on_this_machine(issuer: str) -> None:
    assert BrokerConfig(oidc_issuer=issuer).oidc_issuer == issuer


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": "oidc"}, "auth: oidc needs issuers of tokens; set oidc_issuer or oidc_kubernetes"),
        ({"superusers": "admin"}, "superusers: needs authentication, which auth does not switch on; valid: auth=token"),
        ({"auth": "tls"}, "auth: tls needs the authorities of clients' certificates; set tls_client_ca"),
        ({"auth": "basic"}, "auth: basic needs a file of users; set basic_file"),
        (
            {"oidc_issuer": "https://a"},
            "oidc_issuer: needs the method oidc, which auth does not name; valid: auth=oidc",
        ),
        ({"oidc_kubernetes": "true"}, "oidc_kubernetes: needs the method oidc, which auth does not name"),
        ({"basic_file": "users"}, "basic_file: needs the method basic, which auth does not name; valid: auth=basic"),
        (
            {"auth": "oidc", "oidc_issuer": "https://a", "oidc_audience": " ,"},
            "oidc_audience: is empty, and oidc_issuer needs it; valid: the audiences of this broker",
        ),
        ({"auth": "oidc", "oidc_kubernetes": "true"}, "oidc_audience: is empty, and oidc_kubernetes needs it"),
        (
            {"auth": "oidc", "oidc_issuer": "https://a,https://b", "oidc_audience_by_issuer": "https://a=x"},
            "oidc_audience: is empty, and oidc_issuer needs it; valid: the audiences of this broker",
        ),
        (
            {
                "auth": "oidc",
                "oidc_issuer": "https://a",
                "oidc_audience": "x",
                "oidc_audience_by_issuer": "https://b=x",
            },
            "oidc_audience_by_issuer: 'https://b=x' is no audience of an issuer that is trusted; valid: ISSUER=",
        ),
        (
            {"auth": "oidc", "oidc_issuer": "https://a", "oidc_audience": "x", "oidc_audience_by_issuer": "https://a="},
            "oidc_audience_by_issuer: 'https://a=' is no audience of an issuer that is trusted",
        ),
        (
            {
                "auth": "oidc",
                "oidc_issuer": "https://a",
                "oidc_audience": "x",
                "oidc_audience_by_issuer": "kubernetes=x",
            },
            "oidc_audience_by_issuer: 'kubernetes=x' is no audience of an issuer that is trusted",
        ),
        (
            {"oidc_audience_by_issuer": "https://u:p@a=x"},
            "oidc_audience_by_issuer: an entry is no audience of an issuer that is trusted",
        ),
        (
            {"auth": "oidc", "oidc_kubernetes": "true", "oidc_audience": "a", "oidc_ca": "ca.crt"},
            "oidc_ca: needs oidc_issuer, whose servers it is for; valid: both or none",
        ),
    ],
)
def test_settings_that_need_each_other_are_checked_together(settings: dict[str, str], words: str) -> None:
    environment = {f"HELIOGRAPH_{name.upper()}": value for name, value in settings.items()}
    with pytest.raises(ValueError, match=r"^[a-z_]+: ") as caught:
        BrokerConfig.from_environment(environment)
    assert words in str(caught.value)


def test_settings_of_issuers_and_users_that_are_right() -> None:
    settings = {"oidc_issuer": "https://a, https://b/", "oidc_audience": "heliograph", "basic_file": "users"}
    config = BrokerConfig.from_environment({}, auth="oidc,basic", oidc_ca="ca.crt", oidc_kubernetes=True, **settings)
    assert (config.oidc_role_claim, config.oidc_kubernetes) == ("sub", True)


def test_audiences_by_issuer_suffice() -> None:
    own = "https://a=x, https://a=b=y,kubernetes=pods"
    settings = {"oidc_issuer": "https://a,https://a=b", "oidc_audience_by_issuer": own}
    BrokerConfig.from_environment({}, auth="oidc", oidc_kubernetes=True, **settings)
    names = ["https://a", "https://a=b", "kubernetes"]
    # The longest name of an issuer is meant.
    assert parse_audiences(own, names) == {"https://a": ["x"], "https://a=b": ["y"], "kubernetes": ["pods"]}


def test_a_cluster_may_give_settings_that_need_each_other() -> None:
    settings: dict[str, Any] = {"auth": "oidc", "oidc_issuer": "https://id.example", "oidc_audience": "heliograph"}
    assert check_settings(settings) == settings
    del settings["oidc_audience"]
    with pytest.raises(Contradiction, match="oidc_audience: is empty, and oidc_issuer needs it; valid: the audiences"):
        check_settings(settings)


def test_settings_of_tls_that_belong_together_are_taken() -> None:
    config = BrokerConfig(**_FILES, tls_client_ca="c", tls_require_client_certificate=True, tls_only=True)
    assert (config.broker_tls_port, config.https_port) == (6651, 8443)
