"""The options of ``heliograph standalone`` for authentication, as settings of its broker."""

from __future__ import annotations

from typing import Any

import pytest
from heliograph_api.broker_config import BrokerConfig

from tests.support.command_line import CommandLine


def test_options_that_are_repeated_are_lists_of_the_settings(
    heliograph: CommandLine, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH", "tls")
    monkeypatch.setenv("HELIOGRAPH_TOKEN_AUDIENCE", "west")
    secret = "data:;base64,c2VjcmV0"
    options: tuple[Any, ...] = ("--token-secret-key", "a.key", "--token-secret-key", secret)
    options += ("--tls-cert", "tls.crt", "--tls-key", "tls.key", "--tls-client-ca", "ca.crt")
    options += ("--token-public-key", "file:///b", "--auth", "token", "--auth", "tls", "--superuser", "admin")
    assert heliograph("standalone", *options).code == 0
    (config,) = configs
    assert config.auth_methods() == ("token", "tls")
    assert config.token_secret_key == f"a.key,{secret}"
    assert (config.token_public_key, config.token_audience) == ("file:///b", "west")


def test_options_that_are_left_out_leave_the_environment_in_effect(
    heliograph: CommandLine, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH", "token")
    monkeypatch.setenv("HELIOGRAPH_TOKEN_SECRET_KEY", "a.key")
    assert heliograph("standalone").code == 0
    assert (configs[0].auth, configs[0].token_secret_key) == ("token", "a.key")


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (
            ("--auth", "token"),
            1,
            "auth (--auth): token needs a key that tokens are verified with; set token_secret_key",
        ),
        (("--auth", "token"), 1, "set token_secret_key (--token-secret-key) or token_public_key (--token-public-key)"),
        (("--auth", "kerberos"), 1, "auth (--auth): 'kerberos' is no method; valid: token, tls, basic, oidc"),
        (
            ("--token-secret-key", "a"),
            1,
            "token_secret_key (--token-secret-key): needs the method token, which auth does",
        ),
        (("--token-secret-key", "a"), 1, "does not name; valid: auth=token (--auth token)"),
        (("--superuser", "a"), 1, "superusers (--superuser): needs authentication, which auth does not switch on"),
        (("--tls-cert", "a"), 1, "tls_cert (--tls-cert): it needs tls_key (--tls-key), which is not set; valid: "),
        (("--token-public-key", "a,b"), 2, "--token-public-key 'a,b' is empty or has a comma; valid: one value, and"),
        (("--token-secret-key", ""), 2, "--token-secret-key '' is empty or has a comma"),
        (("--token-secret-key", "data:;base64,c2V,jcm"), 2, "--token-secret-key data:… is empty or has a comma"),
        (("--superuser", "a,b"), 2, "--superuser 'a,b' is empty or has a comma"),
    ],
)
def test_wrong_options_are_refused_by_name(
    heliograph: CommandLine,
    configs: list[BrokerConfig],
    options: tuple[str, ...],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    ran = heliograph("standalone", *options)
    assert (ran.code, ran.out, configs) == (code, "", [])
    assert words in " ".join(ran.err.split())
