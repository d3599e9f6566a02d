"""The watch over a run's logs finds a secret in each form that a log could have it in."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import urllib.parse
from pathlib import Path

import jwt
import pytest

from tests.support.certificates import Authority
from tests.support.secret_watch import SecretWatch

ROOT = Path(__file__).parents[2]
KEY = bytes(range(200, 232))
PASSWORD = "what only one knows: 100 %"
TOKEN = jwt.encode({"sub": "billing"}, KEY, "HS256")
UNSIGNED = jwt.encode({"sub": "billing"}, "", "none")
PRIVATE = Authority().issue().key.decode()
LINES_OF_PRIVATE = PRIVATE.splitlines()
LOGGED = {
    "a token": (TOKEN, f"refused {TOKEN}"),
    "a token's signature": (TOKEN, f"refused ...{TOKEN.rpartition('.')[2]}"),
    "a token without signature": (UNSIGNED, f"refused {UNSIGNED}"),
    "a key": (KEY, f"key={KEY!r}"),
    "a key as Base64": (KEY, base64.b64encode(KEY).decode()),
    "a key in a JWK": (KEY, base64.urlsafe_b64encode(KEY).rstrip(b"=").decode()),
    "a key in digits": (KEY, KEY.hex()),
    "a line of a private key": (PRIVATE, LINES_OF_PRIVATE[2]),
    "a password": (PASSWORD, f"password={PASSWORD}"),
    "a password in a URL": (PASSWORD, f"/?password={urllib.parse.quote_plus(PASSWORD)}"),
}
TESTS = """
from pathlib import Path
from tests.support.secret_watch import WATCH

def test_a_process(tmp_path):
    WATCH.log(tmp_path / "process.log")
    (tmp_path / "process.log").write_text("the client showed TEXT\\n")
    WATCH.secret("its password", "what only one knows")
"""


@pytest.mark.parametrize(("secret", "text"), LOGGED.values(), ids=LOGGED)
def test_a_secret_is_found_in_each_form(tmp_path: Path, secret: str | bytes, text: str) -> None:
    watch = SecretWatch()
    watch.secret("the secret", secret)
    log = tmp_path / "log"
    watch.log(log)
    log.write_text(f"one line\nanother with {text} in it\n")
    assert watch.found() == [f"{log}: the secret"]
    assert text not in watch.found()[0]


def test_a_password_is_found_as_http_has_it() -> None:
    watch = SecretWatch()
    watch.password("billing", PASSWORD)
    header = base64.b64encode(f"billing:{PASSWORD}".encode()).decode()
    assert watch.found_in(f"Authorization: Basic {header}") == ["password of billing"]


def test_what_is_no_secret_is_not_found() -> None:
    watch = SecretWatch()
    watch.secret("a token", TOKEN)
    watch.secret("a private key", PRIVATE)
    watch.password("billing", PASSWORD)
    other = jwt.encode({"sub": "billing"}, KEY + b"2", "HS256")
    assert watch.found_in(f"billing {other} {Authority().issue().key.decode()}") == []


def test_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    watch = SecretWatch()
    watch.log(tmp_path / "log")
    assert watch.found() == [f"{tmp_path / 'log'}: was removed before anybody looked for secrets in it"]


def test_a_secret_that_could_be_any_word_is_refused() -> None:
    with pytest.raises(ValueError, match="the secret 'pin' has 4 bytes; valid: at least 8"):
        SecretWatch().secret("pin", "1234")


@pytest.mark.parametrize(("text", "code"), [("nothing", 0), ("what only one knows", 1)], ids=["kept", "logged"])
@pytest.mark.parametrize("shared", [(), ("-n", "1")], ids=["one process", "shared"])
def test_a_run_with_a_secret_in_a_log_fails(tmp_path: Path, text: str, code: int, shared: tuple[str, ...]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS.replace("TEXT", text))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-p", "tests.support.secret_watch"]
    command += [*shared, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("process.log: its password" in done.stdout) == bool(code)
