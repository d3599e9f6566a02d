"""TLS of both ports with official clients: beside the plain ports or instead of them, and addresses of lookups."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from heliograph_api.admin.admin_client import AdminClient, AdminUnreachable

from tests.support import java_client, java_tools
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.clients import DEADLINE_MS, connect
from tests.support.ports import free_ports
from tests.support.tls_broker import TlsBroker, exchanges
from tests.support.tokens import ask
from tests.support.wire_client import Type, WireClient

#: What it issues is trusted by nobody in these tests.
FOREIGN = Authority("foreign authority")
PERF_WITHIN_S = 120.0
GUIDE = Path(__file__).parents[2] / "docs" / "security.md"


def test_official_clients_connect_by_tls_while_others_connect_without(tls_broker: TlsBroker, topic: str) -> None:
    exchanges(tls_broker.connect(), topic)
    exchanges(tls_broker.connect(tls_broker.process.https_url), f"{topic}-https")
    exchanges(tls_broker.connect(tls_broker.process.service_url), f"{topic}-plain")


def test_without_plain_ports_everything_works_by_tls(tmp_path: Path, topic: str) -> None:
    with TlsBroker(tmp_path, "--tls-only") as broker:
        assert (broker.process.service_url, broker.process.http_url) == ("", "")
        # Which port was named, and which one takes effect instead.
        assert '"option": "--broker-port", "instead": "--broker-tls-port"' in broker.process.log_path.read_text()
        exchanges(broker.connect(), topic)
        exchanges(broker.connect(broker.process.https_url), f"{topic}-https")


def test_without_plain_ports_the_port_of_the_metrics_has_tls_too(tmp_path: Path) -> None:
    [port] = free_ports(1)
    with TlsBroker(tmp_path, "--tls-only", environment={"HELIOGRAPH_METRICS_PORT": str(port)}) as broker:
        with pytest.raises(ConnectionError):
            ask(f"http://127.0.0.1:{port}/metrics")
        answer = ask(f"https://localhost:{port}/metrics", context=broker.context())
        assert answer.status == 200
        assert "heliograph_" in answer.body


async def test_the_admin_client_trusts_the_authority_that_is_named(tls_broker: TlsBroker) -> None:
    url = tls_broker.process.https_url
    async with AdminClient(url, trusted=tls_broker.authority.pem.decode()) as client:
        state = await client.state()
        assert state.namespaces
        cluster = await client.request("GET", "/admin/v2/clusters/standalone")
    assert (cluster["serviceUrlTls"], cluster["brokerServiceUrlTls"]) == (url, tls_broker.process.service_tls_url)
    async with AdminClient(url, trusted=FOREIGN.pem.decode()) as client:
        with pytest.raises(AdminUnreachable, match="certificate verify failed"):
            await client.broker_version()


def refuses(client: pulsar.Client, topic: str) -> bool:
    """Whether a client does not connect, in the two seconds that it has for each operation."""
    try:
        client.create_producer(topic)
    except pulsar.PulsarException:
        return True
    finally:
        client.close()
    return False


def test_a_client_refuses_a_broker_of_another_authority(tls_broker: TlsBroker, topic: str, tmp_path: Path) -> None:
    foreign = str(FOREIGN.write(tmp_path))
    assert refuses(tls_broker.connect(tls_trust_certs_file_path=foreign, operation_timeout_seconds=2), topic)


def test_a_client_refuses_a_certificate_for_another_host(tmp_path: Path, topic: str) -> None:
    broker = TlsBroker(tmp_path)
    broker.replace(broker.authority.issue(hosts=["elsewhere.example"]))
    with broker:
        assert refuses(broker.connect(operation_timeout_seconds=2), topic)
        assert not refuses(broker.connect(tls_validate_hostname=False), topic)


@pytest.mark.timeout(PERF_WITHIN_S + 60)
@pytest.mark.skipif(java_client.missing() is not None, reason=f"the Java client is not tested: {java_client.missing()}")
def test_the_java_client_connects_by_tls(tls_broker: TlsBroker, topic: str, tmp_path: Path) -> None:
    settings = java_tools.write_client_conf(tmp_path, tls_broker.process.https_url, tls_broker.process.service_tls_url)
    with settings.open("a") as file:
        file.write(f"tlsTrustCertsFilePath={tls_broker.trusted}\ntlsEnableHostnameVerification=true\n")
    command = [*java_client.PERF, str(settings), "produce", topic, "--num-messages", "20", "--rate", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PERF_WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    client = tls_broker.connect()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for _ in range(20):
        reader.read_next(DEADLINE_MS)
    client.close()


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    """In a directory of the test's own, and with the ports that its broker has."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## TLS\n")[2].partition("\n## ")[0]
    scripts = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    [program] = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    begins, asks, closes, asks_closed, issues = scripts
    made, _, started = begins.rpartition("heliograph standalone ")
    run_guide(["bash", "-euc", made + issues], tmp_path)
    arguments = [str(tmp_path / word) if word.endswith((".crt", ".key")) else word for word in started.split()]
    with BrokerProcess(
        tmp_path / "data", arguments=[*arguments, "--tls-client-ca", f"{tmp_path}/client-ca.crt"]
    ) as run:
        run_guide(["bash", "-euc", at_ports_of(run, asks)], tmp_path)
        run_guide([sys.executable, "-c", at_ports_of(run, program)], tmp_path)
        billing = pulsar.AuthenticationTLS(f"{tmp_path}/billing.crt", f"{tmp_path}/billing.key")
        options = {"tls_trust_certs_file_path": f"{tmp_path}/tls.crt", "tls_validate_hostname": True}
        client = connect(run.service_tls_url, authentication=billing, **options)
        assert client.create_reader("orders", pulsar.MessageId.earliest).read_next(DEADLINE_MS).data() == b"encrypted"
        client.close()
    made, _, started = closes.rpartition("heliograph standalone ")
    run_guide(["bash", "-euc", made], tmp_path)
    arguments = [str(tmp_path / word) if word.endswith((".crt", ".key")) else word for word in started.split()]
    with BrokerProcess(tmp_path / "closed", arguments=arguments) as run:
        run_guide(["bash", "-euc", at_ports_of(run, asks_closed)], tmp_path)


def at_ports_of(run: BrokerProcess, text: str) -> str:
    """Return a text of the guide with the ports of a broker in place of the default ones with TLS."""
    https, binary = (url.rpartition(":")[2] for url in (run.https_url, run.service_tls_url))
    return text.replace("8443", https).replace("6651", binary)


def run_guide(command: list[str], directory: Path) -> None:
    environment = os.environ | {
        "HELIOGRAPH_CONFIG": str(directory / "config.yaml"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_lookup_answers_with_both_addresses(tls_broker: TlsBroker) -> None:
    with WireClient(tls_broker.process.service_url) as client:
        answer = client.request(Type.LOOKUP, Type.LOOKUP_RESPONSE, topic="persistent://public/default/t")
    urls = (tls_broker.process.service_url, tls_broker.process.service_tls_url)
    assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == urls


def test_listeners_have_addresses_with_tls(tmp_path: Path, topic: str) -> None:
    main, external = free_ports(2)
    url = f"pulsar+ssl://localhost:{external}"
    environment = {
        "HELIOGRAPH_ADVERTISED_LISTENERS": f"internal:pulsar://127.0.0.1:{main},external:{url}",
        "HELIOGRAPH_BIND_ADDRESSES": f"external:pulsar+ssl://*:{external}",
        "HELIOGRAPH_INSECURE": "true",
    }
    with TlsBroker(tmp_path, "--broker-port", str(main), environment=environment) as broker:
        exchanges(broker.connect(url), topic)
        with WireClient(broker.process.service_url) as client:
            for name, expected in (("", (f"pulsar://127.0.0.1:{main}", "")), ("external", ("", url))):
                answer = client.request(
                    Type.LOOKUP,
                    Type.LOOKUP_RESPONSE,
                    topic="persistent://public/default/t",
                    advertised_listener_name=name,
                )
                assert (answer.brokerServiceUrl, answer.brokerServiceUrlTls) == expected
