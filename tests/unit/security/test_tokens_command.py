"""``heliograph tokens``: what it makes, what it checks, and what it says of a wrong option."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import jwt
import pytest
from heliograph_api.tokens.keys import PUBLIC_KEY_ALGORITHMS, SECRET_BYTES
from heliograph_broker.clock import SystemClock

from tests.support.command_line import CommandLine
from tests.support.token_specimens import ALGORITHMS, SECRETS, pair, signed, verifying


@pytest.fixture
def heliograph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.delenv("TOKEN", raising=False)
    return CommandLine(monkeypatch, capsys)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def succeeded(heliograph: CommandLine, *arguments: str | Path, answer: str = "") -> str:
    code, out, err = heliograph("tokens", *arguments, answer=answer)
    assert (code, err) == (0, "")
    return out


def refused(heliograph: CommandLine, *arguments: str | Path, code: int = 1) -> str:
    ran = heliograph("tokens", *arguments)
    assert (ran.code, ran.out) == (code, "")
    return " ".join(ran.err.split())


@pytest.mark.parametrize("algorithm", SECRET_BYTES)
def test_a_secret_key_and_a_token_of_it(heliograph: CommandLine, tmp_path: Path, algorithm: str) -> None:
    key, token = tmp_path / "s.key", tmp_path / "t"
    assert succeeded(heliograph, "create-secret-key", "--output", key, "--signature-algorithm", algorithm) == ""
    assert (len(key.read_bytes()), mode(key)) == (SECRET_BYTES[algorithm], 0o600)
    assert succeeded(heliograph, "create", "--subject", "billing", "--secret-key", key, "-o", token) == ""
    assert mode(token) == 0o600
    assert jwt.decode(token.read_text(), key.read_bytes(), [algorithm]) == {"sub": "billing"}
    out = succeeded(heliograph, "validate", "--token-file", token, "--secret-key", key)
    assert out == "valid: role billing, never expires\n"


@pytest.mark.parametrize("algorithm", PUBLIC_KEY_ALGORITHMS)
def test_a_pair_of_keys_and_a_token_of_it(heliograph: CommandLine, tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    options = ("--output-private-key", private, "--output-public-key", public)
    assert succeeded(heliograph, "create-key-pair", *options, "-a", algorithm.lower()) == ""
    assert mode(private) == 0o600
    token = succeeded(heliograph, "create", "-s", "billing", "-pk", f"file://{private}", "-a", algorithm)
    out = succeeded(heliograph, "validate", "--stdin", "-pk", public, "-a", algorithm, answer=token)
    assert out == "valid: role billing, never expires\n"
    assert succeeded(heliograph, "show", token.strip()).startswith(f'{{"alg": "{algorithm}"')


def test_a_secret_key_on_standard_output(heliograph: CommandLine) -> None:
    text = succeeded(heliograph, "create-secret-key", "-b", "-a", "HS512")
    assert len(base64.b64decode(text, validate=False)) == 64
    token = succeeded(heliograph, "create", "-s", "a", "-sk", f"data:;base64,{text.strip()}")
    assert jwt.decode(token.strip(), base64.b64decode(text), ["HS512"]) == {"sub": "a"}


def test_a_secret_key_in_base64_is_a_file_for_pulsar_too(heliograph: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "s.key"
    succeeded(heliograph, "create-secret-key", "--base64", "--output", key)
    token = succeeded(heliograph, "create", "-s", "a", "-sk", key).strip()
    # Pulsar takes the text of a file as the secret, and the bytes that it encodes in a data URL.
    assert jwt.decode(token, key.read_bytes(), ["HS256"]) == {"sub": "a"}
    other = succeeded(heliograph, "create", "-s", "b", "-sk", f"data:;base64,{key.read_text()}").strip()
    assert jwt.decode(other, base64.b64decode(key.read_bytes()), ["HS256"]) == {"sub": "b"}
    for each, role in ((token, "a"), (other, "b")):
        assert f"role {role}," in succeeded(heliograph, "validate", each, "-sk", key)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h", 3600), ("3d", 259_200), ("5y", 157_680_000), ("90", 90), ("1.5h", 5400), ("2w", 1_209_600)],
)
@pytest.mark.parametrize("option", ["-e", "--expiry-time", "--expires"])
def test_the_end_of_a_token(heliograph: CommandLine, tmp_path: Path, option: str, text: str, seconds: int) -> None:
    key = tmp_path / "s.key"
    key.write_bytes(SECRETS["HS256"])
    before = SystemClock().now_ms() // 1000
    token = succeeded(heliograph, "create", "-s", "a", "-sk", key, option, text).strip()
    claims = jwt.decode(token, SECRETS["HS256"], ["HS256"])
    assert before + seconds <= claims["exp"] <= SystemClock().now_ms() // 1000 + seconds
    assert "valid: role a, until 20" in succeeded(heliograph, "validate", token, "-sk", key)


def test_a_token_that_never_expires_may_say_so(heliograph: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "s.key"
    key.write_bytes(SECRETS["HS256"])
    token = succeeded(heliograph, "create", "-s", "a", "-sk", key, "--expires", "never").strip()
    assert jwt.decode(token, SECRETS["HS256"], ["HS256"]) == {"sub": "a"}


def test_the_audience_and_headers_of_a_token(heliograph: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "s.key"
    key.write_bytes(SECRETS["HS256"])
    options = ("create", "-s", "a", "-sk", key, "--audience", "west", "-hs", "kid=one", "--headers", "x=y=z")
    token = succeeded(heliograph, *options).strip()
    assert jwt.get_unverified_header(token) == {"alg": "HS256", "typ": "JWT", "kid": "one", "x": "y=z"}
    assert "valid" in succeeded(heliograph, "validate", token, "-sk", key, "--audience", "west")
    reason = refused(heliograph, "validate", token, "-sk", key, "--audience", "east")
    assert reason == "heliograph: the token's audience (claim aud) is not this cluster's"
    assert "--headers 'kid' is not a header; valid: NAME=VALUE" in refused(heliograph, *options, "-hs", "kid", code=2)
    assert "the header 'alg' is set by the signer" in refused(heliograph, *options, "-hs", "alg=none")


def test_nothing_is_written_over_without_force(heliograph: CommandLine, tmp_path: Path) -> None:
    taken, free = tmp_path / "taken", tmp_path / "free"
    taken.write_text("mine")
    taken.chmod(0o644)
    words = "taken exists already; choose another name, or replace it with --force"
    key = tmp_path / "s.key"
    key.write_bytes(SECRETS["HS256"])
    assert words in refused(heliograph, "create-secret-key", "-o", taken)
    assert words in refused(heliograph, "create", "-s", "a", "-sk", key, "-o", taken)
    for private, public in ((taken, free), (free, taken)):
        options = ("--output-private-key", private, "--output-public-key", public)
        assert words in refused(heliograph, "create-key-pair", "-a", "ES256", *options)
    assert taken.read_text() == "mine"
    assert not free.exists()
    succeeded(heliograph, "create-secret-key", "-o", taken, "--force")
    assert (len(taken.read_bytes()), mode(taken)) == (32, 0o600)
    assert {path.name for path in tmp_path.iterdir()} == {"taken", "s.key"}


def test_a_token_of_another_key_or_time_is_not_valid(heliograph: CommandLine, tmp_path: Path) -> None:
    key, other = tmp_path / "s.key", tmp_path / "other.key"
    key.write_bytes(SECRETS["HS256"])
    other.write_bytes(pair("ES256").public_pem)
    token = signed("HS256", {"sub": "a"}).decode()
    reason = refused(heliograph, "validate", token, "-pk", other)
    assert reason == "heliograph: the token is not signed by a key that this broker trusts"
    assert "role a," in succeeded(heliograph, "validate", token, "-pk", other, "-sk", key)
    old = signed("HS256", {"sub": "a", "exp": 1_700_000_000}).decode()
    reason = refused(heliograph, "validate", old, "-sk", key)
    assert reason == "heliograph: the token expired at 2023-11-14 22:13:20 UTC"
    reason = refused(heliograph, "validate", token, "-sk", key, "-a", "HS512")
    assert reason == "heliograph: the token is signed by HS256, not by HS512"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tokens_of_another_library_are_shown(heliograph: CommandLine, tmp_path: Path, algorithm: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(signed(algorithm, {"sub": "a\x1b[1m", "n": 1}) + b"\n")
    header, line, claims = succeeded(heliograph, "show", "-f", path).splitlines()
    assert (header, line) == (f'{{"alg": "{algorithm}", "typ": "JWT"}}', "---")
    assert claims == '{"sub": "a\\u001b[1m", "n": 1}'


def test_a_token_comes_from_one_place(heliograph: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = signed("HS256", {"sub": "a"}).decode()
    assert "there is no token; valid: --token-file FILE, --stdin, TOKEN" in refused(heliograph, "show", code=2)
    assert "given more than once" in refused(heliograph, "show", token, "--stdin", code=2)
    missing = tmp_path / "missing"
    assert f"cannot read {missing}: No such file" in refused(heliograph, "show", "-f", missing)
    assert "not a token: it is not three parts" in refused(heliograph, "show", "a.b")
    monkeypatch.setenv("TOKEN", token)
    assert '"sub": "a"' in succeeded(heliograph, "show")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "-s", "a"), "a token is signed by one key; valid: either --secret-key KEY or --private-key KEY"),
        (("create", "-s", "a", "-sk", "k", "-pk", "k"), "a token is signed by one key"),
        (("create", "-s", " ", "-sk", "k"), "--subject is empty; valid: a role, such as billing"),
        (("create", "-s", "a", "-sk", "k", "-a", "none"), "'none' is not one of HS256, HS384, HS512, RS256,"),
        (("create", "-s", "a", "-sk", "k", "-e", "soon"), "'soon' is not a duration; valid: 500ms, 90s,"),
        (("create", "-s", "a", "-sk", "k", "-e", "0"), "'0' is no time that a token is valid for; valid: 30m, 1h,"),
        (("create", "-s", "a", "-sk", "k", "-e", "0y"), "'0y' is no time that a token is valid for; valid: 30m, 1h,"),
        (("create", "-s", "a", "-sk", "k", "-e", "-1"), "'-1' is no time that a token is valid for; valid: 30m, 1h,"),
        (("create", "-s", "a", "-sk", "k", "-e", "-2h"), "'-2h' is not a duration; valid: 500ms, 90s,"),
        (("create", "-s", "a", "-sk", "k", "-e", "infinite"), "valid: 30m, 1h, 3d, 2w, 5y, or never"),
        (("create", "-s", "a", "-sk", "k", "-e", ""), "'' is no time that a token is valid for; valid: 30m, 1h, 3d,"),
        (("create-secret-key", "-a", "RS256"), "'RS256' is not one of HS256, HS384, HS512"),
        (("validate", "a.b.c"), "no key to check the token with; valid: --secret-key KEY or --public-key KEY"),
        (
            ("create-key-pair", "--output-private-key", "a", "--output-public-key", "./a"),
            "name the same file; valid: two files",
        ),
    ],
)
def test_wrong_options_name_the_right_ones(
    heliograph: CommandLine, arguments: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert words in refused(heliograph, *arguments, code=2)


def test_keys_that_cannot_be_used_are_named_and_not_shown(heliograph: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "a.key"

    def words(option: str, content: bytes, command: str = "create") -> str:
        path.write_bytes(content)
        arguments = ("create", "-s", "a") if command == "create" else ("validate", "a.b.c")
        return refused(heliograph, *arguments, option, path)

    assert (
        words("-sk", b"secret!") == f"heliograph: '{path}': it is a secret of 7 bytes; valid: 32 random bytes or more"
    )
    assert "is empty; valid: a file that holds a key" in words("-sk", b"\n")
    assert "it is a public or private key or a certificate" in words("-sk", pair("ES256").private_der)
    assert "it is a token; valid: a secret of 32 random bytes" in words("-sk", signed("HS256", {"sub": "a"}) + b"\n")
    assert "it is not a private key in DER or PEM; valid: RSA of 2048" in words("-pk", pair("ES256").public_der)
    assert "it is a private key, which only the signer" in words("-pk", pair("ES256").private_der, "validate")
    assert "it is not a public key in DER or PEM" in words("-pk", verifying("HS256"), "validate")
    assert "there is no file 'missing'; valid: a path, file:///path or data:;base64,TEXT" in refused(
        heliograph, "create", "-s", "a", "-sk", "missing"
    )
    for key in (
        base64.b64encode(SECRETS["HS256"]).decode(),
        SECRETS["HS256"].hex(),
        "-----BEGIN PRIVATE KEY-----\nMIGH",
    ):
        reason = refused(heliograph, "create", "-s", "a", "-sk", key)
        assert f"there is no file of the name that is given ({len(key)} characters, not shown because" in reason
        assert key not in reason
    # As long as a key, in a directory that is there.
    missing = "/tmp/which-has-no-such-file-of-a-name-like-this"
    assert f"there is no file '{missing}'; valid:" in refused(heliograph, "create", "-s", "a", "-sk", missing)
    reason = refused(heliograph, "create", "-s", "a", "-sk", "data:;base64,c2VjcmV0")
    assert reason == "heliograph: data:…: it is a secret of 6 bytes; valid: 32 random bytes or more"
    short = tmp_path / "s.key"
    short.write_bytes(SECRETS["HS256"])
    reason = refused(heliograph, "create", "-s", "a", "-sk", short, "-a", "HS512")
    assert reason == "heliograph: the key signs by HS256, not by HS512"
