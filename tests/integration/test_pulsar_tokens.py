"""Keys and tokens of Pulsar's own ``bin/pulsar tokens`` are good here, and those of ``heliograph tokens`` there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import java_tools, real_pulsar
from tests.support.command_line import CommandLine

_MISSING = real_pulsar.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

_CLASS = "org.apache.pulsar.utils.auth.tokens.TokensCliUtils"
_FOREVER = "valid: role billing, never expires\n"

Tokens = Callable[..., str]


@pytest.fixture
def pulsar() -> Tokens:
    """Runs ``bin/pulsar tokens`` and returns what it prints; it fails the test if the command fails."""

    def run(*arguments: str | Path) -> str:
        command = [*java_tools.QUICK, f"{java_tools.FETCHED / 'standalone'}/*", _CLASS, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def heliograph(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tokens:
    """Runs ``heliograph tokens`` and returns what it prints; it fails the test if the command fails."""
    command_line = CommandLine(monkeypatch, capsys)

    def run(*arguments: str | Path) -> str:
        code, out, err = command_line("tokens", *arguments)
        assert code == 0, err
        return out

    return run


@pytest.fixture(params=["pulsar makes", "heliograph makes"])
def tools(request: pytest.FixtureRequest, pulsar: Tokens, heliograph: Tokens) -> tuple[Tokens, Tokens]:
    """Both tools: the one that makes the keys, and the other."""
    return (pulsar, heliograph) if request.param == "pulsar makes" else (heliograph, pulsar)


def validated(tool: Tokens, token: Path, *options: str | Path) -> str:
    """Check a token; return what the tool says of it in one form."""
    out = tool("validate", "--token-file", token, *options)
    return "billing" if out in (_FOREVER, "{sub=billing}\n") else out


@pytest.mark.parametrize(("algorithm", "base64"), [("HS256", []), ("HS512", []), ("HS256", ["--base64"])])
def test_secret_keys(tools: tuple[Tokens, Tokens], tmp_path: Path, algorithm: str, base64: list[str]) -> None:
    key, token = tmp_path / "s.key", tmp_path / "token"
    tools[0]("create-secret-key", "--output", key, "-a", algorithm, *base64)
    sources = [f"file://{key}", *([f"data:;base64,{key.read_text()}"] if base64 else [])]
    for maker, checker in (tools, tools[::-1]):
        for source in sources:
            token.write_text(maker("create", "--subject", "billing", "--secret-key", source).strip())
            assert validated(checker, token, "--secret-key", source) == "billing"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES512"])
def test_pairs_of_keys(tools: tuple[Tokens, Tokens], tmp_path: Path, algorithm: str) -> None:
    private, public, token = tmp_path / "private.key", tmp_path / "public.key", tmp_path / "token"
    options = ("-a", algorithm)
    tools[0]("create-key-pair", *options, "--output-private-key", private, "--output-public-key", public)
    for maker, checker in (tools, tools[::-1]):
        token.write_text(
            maker("create", "--subject", "billing", "--private-key", f"file://{private}", *options).strip()
        )
        assert validated(checker, token, "--public-key", f"file://{public}", *options) == "billing"


def test_a_signature_that_pulsar_does_not_make(pulsar: Tokens, heliograph: Tokens, tmp_path: Path) -> None:
    # It cannot read its own keys for these algorithms, but verifies them with keys of RSA.
    private, public, token = tmp_path / "private.key", tmp_path / "public.key", tmp_path / "token"
    heliograph("create-key-pair", "--output-private-key", private, "--output-public-key", public)
    token.write_text(heliograph("create", "-s", "billing", "-pk", private, "-a", "PS384").strip())
    assert validated(pulsar, token, "--public-key", f"file://{public}") == "billing"
    assert "PS384" in pulsar("show", "-f", token)


def test_the_end_of_a_token(tools: tuple[Tokens, Tokens], tmp_path: Path) -> None:
    maker, checker = tools
    key, token = tmp_path / "s.key", tmp_path / "token"
    maker("create-secret-key", "--output", key)
    options = ("--subject", "billing", "--secret-key", f"file://{key}", "--expiry-time", "5y")
    token.write_text(maker("create", *options).strip())
    out = validated(checker, token, "--secret-key", f"file://{key}")
    assert out.startswith(("valid: role billing, until 20", "{sub=billing, exp=")), out
