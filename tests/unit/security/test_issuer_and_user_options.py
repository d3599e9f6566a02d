"""The options of ``heliograph standalone`` for issuers of tokens and for users, as settings of its broker."""

from __future__ import annotations

import pytest
from heliograph_api.broker_config import BrokerConfig

from tests.support.command_line import CommandLine


def test_issuers_and_audiences_are_repeated(
    heliograph: CommandLine, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH", "oidc")
    monkeypatch.setenv("HELIOGRAPH_OIDC_AUDIENCE", "west")
    issuers = ("--oidc-issuer", "https://a", "--oidc-issuer", "https://b/")
    assert heliograph("standalone", *issuers).code == 0
    assert heliograph("standalone", *issuers, "--oidc-audience", "a", "--oidc-audience", "b").code == 0
    assert [config.oidc_issuer for config in configs] == ["https://a,https://b/"] * 2
    # Options that are left out leave the environment in effect.
    assert [config.oidc_audience for config in configs] == ["west", "a,b"]


def test_the_authorities_of_issuers(
    heliograph: CommandLine, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH", "oidc")
    monkeypatch.setenv("HELIOGRAPH_OIDC_CA", "environment.crt")
    issuer = ("--oidc-issuer", "https://a", "--oidc-audience", "a")
    assert heliograph("standalone", *issuer).code == 0
    assert heliograph("standalone", *issuer, "--oidc-ca", "option.crt").code == 0
    assert [config.oidc_ca for config in configs] == ["environment.crt", "option.crt"]
    monkeypatch.delenv("HELIOGRAPH_AUTH")
    ran = heliograph("standalone", "--oidc-ca", "option.crt")
    assert (ran.code, len(configs)) == (1, 2)
    assert "oidc_ca (--oidc-ca): needs oidc_issuer (--oidc-issuer), whose servers it is for" in ran.err


def test_wrong_issuers_are_refused_by_name(heliograph: CommandLine, configs: list[BrokerConfig]) -> None:
    ran = heliograph("standalone", "--oidc-issuer", "http://id.example")
    assert (ran.code, configs) == (1, [])
    assert "oidc_issuer (--oidc-issuer): 'http://id.example' is no URL of an issuer; valid: https://" in ran.err
    ran = heliograph("standalone", "--oidc-issuer", "https://id.example")
    assert "oidc_issuer (--oidc-issuer): needs the method oidc, which auth does not name; valid: auth=oidc" in ran.err


def test_the_file_of_users(
    heliograph: CommandLine, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH", "basic")
    assert heliograph("standalone", "--basic-file", "users").code == 0
    assert configs[-1].basic_file == "users"
    assert "auth (--auth): basic needs a file of users; set basic_file (--basic-file)" in heliograph("standalone").err
