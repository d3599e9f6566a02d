"""The file of contexts, and from where a command takes its broker and its credentials."""

from __future__ import annotations

import os
import stat
import string
from itertools import product
from pathlib import Path

import pytest
from heliograph_broker.cli.base.access import Certificate, Flags, Token, find_context, find_credentials
from heliograph_broker.cli.base.contexts import (
    AccessError,
    Context,
    Contexts,
    contexts_path,
    read_contexts,
    write_contexts,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support.command_line import CommandLine
from tests.support.ran import Ran

_TEXTS = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=20)
_FILES = st.one_of(st.just(""), _TEXTS.map(lambda text: f"/{text}"))
_NAMES = st.text(string.ascii_letters + string.digits, min_size=1, max_size=10)
_CONTEXTS = st.dictionaries(_NAMES, st.builds(Context, _TEXTS, _TEXTS, *[_FILES] * 4), max_size=4).flatmap(
    lambda named: st.builds(Contexts, st.just(named), st.sampled_from(["", *named]))
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "heliograph" / "config.yaml"


@given(contexts=_CONTEXTS)
def test_contexts_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, contexts: Contexts) -> None:
    file = tmp_path_factory.getbasetemp() / "round-trip" / "config.yaml"
    write_contexts(file, contexts)
    assert read_contexts(file) == contexts


def test_the_file_is_for_its_owner_and_replaced_as_a_whole(file: Path) -> None:
    before = os.umask(0)
    try:
        write_contexts(file, Contexts({"a": Context("http://a")}))
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    inode = file.stat().st_ino
    write_contexts(file, Contexts({}))
    assert file.stat().st_ino != inode
    assert [each.name for each in file.parent.iterdir()] == ["config.yaml"]


def test_a_link_to_the_file_stays_one(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "heliograph.yaml"
    target.parent.mkdir()
    target.touch(0o600)
    file.parent.mkdir()
    file.symlink_to(target)
    write_contexts(file, Contexts({"a": Context("http://a")}))
    assert file.is_symlink()
    assert "http://a" in target.read_text()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o660])
def test_a_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    write_contexts(file, Contexts({"a": Context("http://a")}))
    file.chmod(mode)
    with pytest.raises(AccessError, match=rf"others may write .* \(mode {mode:04o}\).*chmod 600 {file}"):
        read_contexts(file)
    file.chmod(0o644)
    assert "a" in read_contexts(file).named


@pytest.mark.skipif(os.geteuid() != 0, reason="gives the file to another user, which root may")
def test_a_file_of_another_user_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_contexts(file, Contexts({"a": Context("http://a")}))
    os.chown(file, 12345, -1)
    with pytest.raises(AccessError, match=r"belongs to another user \(uid 12345\)"):
        read_contexts(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contexts: [", "not YAML: line 1"),
        ("contexts: [a]", "contexts should be a mapping"),
        ("- a", "should be a mapping"),
        ("contexts: {a: b}", r"contexts\.a should be a mapping"),
        ("contexts: {a: {token: s3cret}}", r"contexts\.a: 'token' is not a key here; valid: http-url, service-url,"),
        ("clusters: {}", "'clusters' is not a key here; valid: current-context, contexts"),
        ("contexts: {a: {http-url: 3}}", r"contexts\.a\.http-url is 3; it should be a text"),
        (
            'contexts: {a: {http-url: "http://\\e[2J"}}',
            r"contexts\.a\.http-url is .* should have no control characters",
        ),
        ("contexts: {1: {}}", "the key 1 should be a text"),
        ("contexts: {-a: {}}", "'-a' cannot name a context"),
        ("current-context: b\ncontexts: {a: {}}", "current-context is 'b'; valid: a"),
        ("a: 1\n---\nb: 1", "has 2 documents; valid: one"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_file_that_is_none_of_contexts_is_refused(file: Path, text: str, message: str) -> None:
    file.parent.mkdir()
    file.touch(0o600)
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(AccessError, match=message) as refused:
        read_contexts(file)
    assert str(file) in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_files_of_a_context_are_relative_to_its_own_or_to_the_home_directory(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text("contexts: {a: {token-file: a.token, tls-ca: ~/ca.crt, client-cert: /c.crt, client-key: }}")
    found = read_contexts(file).named["a"]
    assert found == Context(token_file=f"{file.parent}/a.token", tls_ca="/home/ada/ca.crt", client_cert="/c.crt")


def test_where_the_file_is() -> None:
    home = {"HOME": "/home/ada"}
    assert contexts_path({}) is None
    assert contexts_path(home) == Path("/home/ada/.config/heliograph/config.yaml")
    assert contexts_path(home | {"XDG_CONFIG_HOME": "relative"}) == contexts_path(home)
    assert contexts_path(home | {"XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg/heliograph/config.yaml")
    assert contexts_path(home | {"HELIOGRAPH_CONFIG": "mine.yaml"}) == Path("mine.yaml")


# From where a command takes what it needs


@pytest.mark.parametrize(("option", "environment", "context"), list(product([True, False], repeat=3)))
@pytest.mark.parametrize("field", ["token_file", "tls_ca", "client"])
def test_an_option_wins_over_the_environment_and_that_over_the_context(
    option: bool, environment: bool, context: bool, field: str
) -> None:
    fields = ("client_cert", "client_key") if field == "client" else (field,)
    flags = Flags(**dict.fromkeys(fields, "/option") if option else {})
    variables = {f"HELIOGRAPH_{each.upper()}": "/environment" for each in fields} if environment else {}
    of_context = Context(**dict.fromkeys(fields, "/context")) if context else Context()
    found = find_credentials(flags, variables, of_context)
    places = [
        place
        for place, there in zip(["/option", "/environment", "/context"], (option, environment, context), strict=True)
        if there
    ]
    if not places:
        assert found == find_credentials(Flags(), {}, Context())
    elif field == "token_file":
        assert found.token == Token(places[0])
    elif field == "tls_ca":
        assert found.tls_ca == places[0]
    else:
        assert found.certificate == Certificate(places[0], places[0])


def test_a_token_in_the_environment_is_between_option_and_context() -> None:
    variables = {"HELIOGRAPH_TOKEN": "abc"}
    of_context = Context(token_file="/context")
    assert find_credentials(Flags(), variables, of_context).token == Token("", "abc")
    assert find_credentials(Flags(token_file="/option"), variables, of_context).token == Token("/option")
    with pytest.raises(AccessError, match=r"HELIOGRAPH_TOKEN_FILE and HELIOGRAPH_TOKEN are both set"):
        find_credentials(Flags(), variables | {"HELIOGRAPH_TOKEN_FILE": "/f"}, Context())


@pytest.mark.parametrize(
    ("flags", "environment", "message"),
    [
        (Flags(client_cert="c"), {}, "--client-cert is set without --client-key"),
        (Flags(client_key="c"), {}, "--client-key is set without --client-cert"),
        (Flags(), {"HELIOGRAPH_CLIENT_CERT": "c"}, "HELIOGRAPH_CLIENT_CERT is set without HELIOGRAPH_CLIENT_KEY"),
    ],
)
def test_a_certificate_and_its_key_come_from_one_place(flags: Flags, environment: dict[str, str], message: str) -> None:
    with pytest.raises(AccessError, match=message):
        find_credentials(flags, environment, Context(client_cert="a", client_key="b"))


def test_the_current_context_is_for_its_own_addresses_and_a_named_one_for_any(file: Path) -> None:
    one, two = Context("http://one"), Context("http://two")
    write_contexts(file, Contexts({"one": one, "two": two}, "one"))
    environment = {"HELIOGRAPH_CONFIG": str(file)}
    named = environment | {"HELIOGRAPH_CONTEXT": "two"}
    assert find_context(Flags(), environment, url_given=False) == one
    assert find_context(Flags(), environment, url_given=True) == Context()
    for url_given in (True, False):
        assert find_context(Flags(), named, url_given=url_given) == two
        assert find_context(Flags(context="one"), named, url_given=url_given) == one
    with pytest.raises(AccessError, match=rf"there is no context 'three' in {file}; valid: one, two"):
        find_context(Flags(context="three"), environment, url_given=False)
    assert find_context(Flags(), {}, url_given=False) == Context()
    with pytest.raises(AccessError, match="neither HELIOGRAPH_CONFIG nor HOME is set"):
        find_context(Flags(context="one"), {}, url_given=False)


def test_options_of_a_command_win_over_those_before_it() -> None:
    own, before = Flags(context="a", tls_ca="b"), Flags(context="c", token_file="d")
    assert own.over(before) == Flags(context="a", token_file="d", tls_ca="b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; it should hold a token"),
        (b" \n", "is empty"),
        (b"s3cret two", "should hold one token and nothing else"),
        (b"s3cret\ntwo", "should hold one token and nothing else"),
        (b"s3cret\r\nX-Other: 1", "should hold one token and nothing else"),
        ("s3cret-é".encode(), "should hold one token and nothing else"),
        (b"\xff\xfe", "is not text"),
    ],
)
def test_a_file_without_one_token_is_refused_without_showing_it(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(AccessError, match=message) as refused:
        Token(str(path)).read()
    assert "s3cret" not in str(refused.value)


def test_a_token_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    token = Token(str(path))
    assert token.read() == "first"
    path.write_text("  second ")
    assert token.read() == "second"
    path.unlink()
    with pytest.raises(AccessError, match=rf"cannot read the token file {path}: No such file or directory"):
        token.read()


# The commands


@pytest.fixture
def run(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("HELIOGRAPH_CONFIG", str(file))
    monkeypatch.delenv("HELIOGRAPH_CONTEXT", raising=False)
    return CommandLine(monkeypatch, capsys)


def test_contexts_are_set_used_listed_shown_and_deleted(run: CommandLine, file: Path, tmp_path: Path) -> None:
    assert run("context", "list").out == "no contexts; 'heliograph context set' makes one\n"
    where = ("--http-url", "https://b.example:8443", "--service-url", "pulsar+ssl://b.example")
    assert run("context", "set", "prod", *where, "--token-file", tmp_path / "t") == Ran(0, "context/prod created\n", "")
    assert run("context", "set", "local", "--http-url", "http://127.0.0.1:8080").code == 0
    assert run("context", "show").err == (
        "heliograph: no context is current; choose one with 'heliograph context use NAME'\n"
    )
    assert run("context", "use", "prod").out == "context/prod is the current one\n"
    prod = {
        "http-url": "https://b.example:8443",
        "service-url": "pulsar+ssl://b.example",
        "token-file": str(tmp_path / "t"),
    }
    assert run("context", "show").json == {"name": "prod", **prod}
    assert run("context", "show", "local").json == {"name": "local", "http-url": "http://127.0.0.1:8080"}
    assert run("--context", "local", "context", "show").json["name"] == "local"
    assert run("context", "list", "-o", "json").json == [
        {"name": "local", "current": False, "http-url": "http://127.0.0.1:8080"},
        {"name": "prod", "current": True, **prod},
    ]
    lines = run("context", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == ["CURRENT", "local", "*"]
    assert run("context", "set", "prod", "--token-file", "").out == "context/prod changed\n"
    assert "token-file" not in run("context", "show").json
    assert run("context", "delete", "prod").out == "context/prod deleted\n"
    assert read_contexts(file) == Contexts({"local": Context("http://127.0.0.1:8080")})


def test_files_of_a_new_context_are_as_seen_from_here(
    run: CommandLine, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    run("context", "set", "a", "--token-file", "t", "--tls-ca", "~/ca.crt")
    assert read_contexts(file).named["a"] == Context(token_file=f"{tmp_path}/t", tls_ca="/home/ada/ca.crt")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["set", "a"], 2, "nothing to set"),
        (["set", "a b", "--http-url", "http://x"], 1, "'a b' cannot name a context"),
        (
            ["set", "a", "--http-url", "broker:8080"],
            2,
            "--http-url 'broker:8080' should start with http:// or https://",
        ),
        (["set", "a", "--service-url", "http:/x"], 2, "should start with pulsar:// or pulsar+ssl://"),
        (["set", "a", "--http-url", "http://u:s3cret@x"], 2, "should have no user and password"),
        (["set", "a", "--tls-ca", "a\x1b[2J"], 1, "it should have no control characters"),
        (["set", "a", "--client-cert", "c.crt"], 2, "--client-cert and --client-key belong together"),
        (["use", "b"], 1, "there is no context 'b' in FILE; valid: none yet"),
        (["show", "b"], 1, "there is no context 'b' in FILE"),
        (["delete", "b"], 1, "there is no context 'b' in FILE"),
    ],
)
def test_what_cannot_be_a_context_is_refused(
    run: CommandLine, file: Path, arguments: list[str], code: int, message: str
) -> None:
    ran = run("context", *arguments)
    assert ran.code == code
    # Typer breaks lines.
    assert message.replace("FILE", str(file)).replace(" ", "") in "".join(ran.err.replace("│", "").split())
    assert "s3cret" not in ran.err
    assert not file.exists()


@pytest.mark.parametrize("before", [True, False])
def test_the_options_are_valid_before_and_after_a_command(run: CommandLine, before: bool) -> None:
    options, command = ["--context", "missing"], ["topics", "list"]
    ran = run(*(options + command if before else command + options))
    assert ran.code == 1
    assert "there is no context 'missing'" in ran.err


def test_help_lists_the_options_once(run: CommandLine) -> None:
    assert "HELIOGRAPH_TOKEN_FILE" in run("--help").out
    text = run("topics", "list", "--help").out
    assert "HELIOGRAPH_TOKEN_FILE" not in text
    assert "Also: --context, --token-file" in text
    assert "--token-file" not in run("store", "check", "--help").out
