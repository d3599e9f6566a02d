"""Records what Apache Pulsar answers in each cell: see ``scripts/rights-of-pulsar --help``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.real_pulsar import missing, real_pulsar
from tests.support.tokens import Signer

from .answers import PROXIES, SUPERUSERS, Keys, command_answers, http_answers, texts
from .differences import RECORDED, TABLE

_DESCRIPTION = f"""\
Start an Apache Pulsar that asks for tokens, ask every command and every route of it as every kind of client, and write
what it answered to tests/integration/{RECORDED.name}. It takes minutes, and 2 GiB of memory. Afterwards
tests/integration/test_rights_as_pulsar.py says what differs from Heliograph and has no reason in {TABLE.name}
yet. scripts/java-tools standalone fetches Pulsar."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "scripts/rights-of-pulsar",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", type=Path, default=RECORDED, metavar="FILE", help="instead of that file")
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        sys.exit(f"scripts/rights-of-pulsar: {reason}")
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        roles = (f"superUserRoles=admin,{','.join(SUPERUSERS)}", f"proxyRoles={','.join(PROXIES)}")
        with real_pulsar(directory / "pulsar", *roles, tokens=True) as pulsar:
            secret = (pulsar.directory / "secret").read_bytes()
            keys = Keys(Signer(directory / "signer.key", secret), directory)
            answers = {
                "texts": texts(pulsar.service_url, pulsar.http_url, keys),
                "commands": command_answers(pulsar.service_url, pulsar.http_url, keys, patient=True),
                # The last, because it ends with a request that may end the broker.
                "routes": http_answers(pulsar.http_url, keys),
            }
    options.output.write_text(document(answers), encoding="utf-8")


def document(answers: dict[str, dict[str, Any]]) -> str:
    """Return the answers as JSON with a row on each line."""
    halves = []
    for half, rows in answers.items():
        lines = [f"  {json.dumps(row)}: {json.dumps(answer, ensure_ascii=False)}" for row, answer in rows.items()]
        halves.append(f" {json.dumps(half)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(halves) + "\n}\n"


if __name__ == "__main__":
    main()
