"""Without a file of authorities an archive trusts those of the system, for both protocols."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.clients import connect, fresh_name, publish

from .conftest import COMMAND


@pytest.mark.long
def test_an_archive_trusts_the_authorities_of_the_system_unless_it_is_given_others(tmp_path: Path) -> None:
    authority, topic = Authority(), fresh_name()
    trusted, own = authority.write(tmp_path), authority.issue().write(tmp_path)
    tls = ["--tls-only", "--tls-cert", str(own.certificate), "--tls-key", str(own.key)]
    with BrokerProcess(tmp_path / "data", arguments=tls) as running:
        client = connect(running.service_tls_url, tls_trust_certs_file_path=str(trusted))
        publish(client, topic, [b"1", b"2"])
        client.close()
        urls = ["--service-url", running.service_tls_url, "--admin-url", running.https_url]
        command = [*COMMAND, "archive", "--topic", topic, "--path", str(tmp_path / "archive"), *urls]

        def run(authorities: Path) -> dict[str, object]:
            environment = os.environ | {"SSL_CERT_FILE": str(authorities)}
            done = subprocess.run(
                [*command, "--master", "local[1]"],
                capture_output=True,
                text=True,
                timeout=300,
                env=environment,
                check=False,
            )
            found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
            return found

        other = Authority().write(tmp_path, "other")
        assert "certificate verify failed" in str(run(other)["error"])
        done = run(trusted)
        assert (done["rows"], done["error"]) == (2, None)
