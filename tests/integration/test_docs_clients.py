"""The programs that docs/security.md shows clients of a closed broker are those that tests run.

That of pulsar-admin is run by test_pulsar_admin_closed.py, that of Spark by tests/spark/test_closed_broker.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.closed_broker import ADMIN, ClosedBroker, shown

_TESTS = Path(__file__).parent
_SERVICE_URL, _TRUSTED = "pulsar+ssl://broker.example.org:6651", "/etc/heliograph/ca.crt"
_TOKEN = "/etc/heliograph/billing.token"


def replaced(program: str, **places: str) -> str:
    for there, here in places.items():
        assert there in program
        program = program.replace(there, here)
    return program


def test_the_program_in_python_works(closed: ClosedBroker, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(closed.signer.token(ADMIN) + "\n")
    program = replaced(
        shown("python")[0],
        **{_SERVICE_URL: closed.service_url, _TRUSTED: str(closed.broker.trusted), _TOKEN: str(token)},
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert closed.ask("persistent/public/default/orders/stats").body["msgInCounter"] == 1


@pytest.mark.parametrize(
    ("language", "source", "expressions"),
    [
        (
            "java",
            "java/client/cases/Securing.java",
            {
                f'"{_SERVICE_URL}"': 'Closed.fact("serviceUrl")',
                f'"{_TRUSTED}"': 'Closed.fact("trusted")',
                f'"file://{_TOKEN}"': 'Closed.fact("tokenUrl")',
            },
        ),
        (
            "go",
            "go/closed_test.go",
            {
                f'"{_SERVICE_URL}"': 'facts["serviceUrl"]',
                f'"{_TRUSTED}"': 'facts["trusted"]',
                f'"{_TOKEN}"': 'facts["token"]',
            },
        ),
    ],
)
def test_what_is_shown_is_part_of_a_test(language: str, source: str, expressions: dict[str, str]) -> None:
    [program] = shown(language)
    tested = (_TESTS / source).read_text(encoding="utf-8")
    assert " ".join(replaced(program, **expressions).split()) in " ".join(tested.split())
