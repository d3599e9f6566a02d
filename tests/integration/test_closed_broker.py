"""A whole broker with authorization: its grants over a restart, its command line, its metrics and its audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.clients import fresh_name
from tests.support.command_line import CommandLine
from tests.support.tokens import Signer, ask

ROOT = "root"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Iterator[BrokerProcess]:
    """A broker that takes clients without credentials for guests."""
    settings = signer.settings(
        superusers=ROOT,
        monitors="prometheus, other",
        backups="saver",
        anonymous_role="guest",
        log_format="json",
    )
    with BrokerProcess(tmp_path_factory.mktemp("closed") / "data", environment=settings) as running:
        yield running


@pytest.fixture
def topic(closed: BrokerProcess, signer: Signer) -> str:
    name = f"persistent://public/default/{fresh_name()}"
    assert ask(_path(closed, name), signer.token(ROOT), "PUT").status == 204
    return name


def _path(broker: BrokerProcess, topic: str, end: str = "") -> str:
    return f"{broker.http_url}/admin/v2/{topic.replace('://', '/')}{end}"


def _audited(broker: BrokerProcess, path: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in broker.log_path.read_text("utf-8").splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == "administration" and line["path"] == path]


def test_a_grant_stays_in_effect_over_a_restart(closed: BrokerProcess, signer: Signer, topic: str) -> None:
    reader = signer.token("reader")
    assert ask(_path(closed, topic, "/stats"), reader).status == 403
    grant = _path(closed, topic, "/permissions/reader")
    assert ask(grant, signer.token(ROOT), "POST", ["consume"]).status == 204
    assert ask(_path(closed, topic, "/stats"), reader).status == 200
    closed.restart()
    assert ask(_path(closed, topic, "/stats"), reader).status == 200
    assert ask(_path(closed, topic), reader, "DELETE").status == 403


def test_the_command_line_tells_who_may_do_what(
    closed: BrokerProcess,
    signer: Signer,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HELIOGRAPH_HTTP_URL", closed.http_url)
    heliograph = CommandLine(monkeypatch, capsys)
    denied = heliograph("auth", "can-i", "produce", topic)
    assert (denied.code, denied.err) == (1, "")
    assert denied.out.startswith(f"no: no grant of produce for role guest on {topic}")
    assert ask(_path(closed, topic, "/permissions/guest"), signer.token(ROOT), "POST", ["produce"]).status == 204
    allowed = heliograph("auth", "can-i", "produce", topic, "--role", "guest")
    assert (allowed.code, allowed.out) == (0, f"yes: role guest has produce on topic {topic}\n")
    as_json = heliograph("auth", "can-i", "consume", topic, "-s", "s", "-o", "json")
    assert (as_json.code, json.loads(as_json.out)["allowed"]) == (1, False)
    of_another = heliograph("auth", "can-i", "produce", topic, "--role", "billing")
    assert of_another.code == 1
    assert "only administrators may ask about another role than their own: no grant of" in of_another.err
    assert heliograph("auth", "can-i", "fly", topic).code == 2


def test_a_role_that_may_fetch_backups_can_push_one(
    closed: BrokerProcess,
    signer: Signer,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heliograph = CommandLine(monkeypatch, capsys)
    store = f"file://{tmp_path}/backups"
    for role, code in (("saver", 0), ("prometheus", 1)):
        token = tmp_path / f"{role}.token"
        token.write_text(signer.token(role))
        given = ("--token-file", str(token))
        ran = heliograph(*given, "backup", "push", store, f"of-{role}", "--http-url", closed.http_url)
        assert ran.code == code, ran.err
    assert "of-saver" in heliograph("backup", "list", store).out
    assert ask(f"{closed.http_url}/admin/v2/tenants", signer.token("saver")).status == 403


def test_metrics_are_for_monitors(closed: BrokerProcess, signer: Signer) -> None:
    for role, status in (("prometheus", 200), ("other", 200), (ROOT, 200), ("somebody", 403)):
        assert ask(f"{closed.http_url}/metrics", signer.token(role)).status == status
    assert ask(f"{closed.http_url}/admin/v2/tenants", signer.token("prometheus")).status == 403


def test_the_log_has_who_changed_what_and_no_secret(closed: BrokerProcess, signer: Signer, topic: str) -> None:
    path = f"/admin/v2/{topic.replace('://', '/')}/permissions/billing"
    tokens = {role: signer.token(role) for role in (ROOT, "thief")}
    assert ask(closed.http_url + path, tokens["thief"], "POST", ["produce"]).status == 403
    assert ask(closed.http_url + path, tokens[ROOT], "POST", ["produce"]).status == 204
    assert ask(closed.http_url + path, "no token", "DELETE").status == 401
    assert ask(closed.http_url + path, "", "DELETE").status == 403
    seen = [
        (each["role"], each["authentication"], each["method"], each["status"], each["address"])
        for each in _audited(closed, path)
    ]
    here = "127.0.0.1"
    assert seen == [
        ("thief", "token", "POST", 403, here),
        (ROOT, "token", "POST", 204, here),
        ("", "", "DELETE", 401, here),
        ("guest", "anonymous", "DELETE", 403, here),
    ]
    log = closed.log_path.read_text("utf-8")
    assert not any(token in log for token in tokens.values())
