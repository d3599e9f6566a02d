"""An Apache Pulsar of one process: its settings, its credentials, and its life."""

from __future__ import annotations

import argparse
import base64
import hmac
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from scripts.processes import exit_code

ROOT = Path(__file__).resolve().parents[1]
START_WITHIN_S = 120
DESCRIPTION = """\
Run an Apache Pulsar of one process until it is ended, to try things against: the tests of Spark run
against it with HELIOGRAPH_SPARK_AGAINST=pulsar://127.0.0.1:PORT,http://127.0.0.1:HTTP-PORT.

It prints "ready" when it is. The first time, Maven fetches it: a quarter of a gigabyte. It needs
Java 17 and about 2 GiB of memory."""
_AUTHENTICATION = """\
authenticationEnabled=true
authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken
tokenSecretKey=file://{directory}/secret
authorizationEnabled=true
authorizationProvider=org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider
superUserRoles=admin
brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken
brokerClientAuthenticationParameters=file://{directory}/token
"""
#: Packages that Pulsar reaches into, and Java 17 keeps closed.
_OPENED = (
    *(f"java.base/{name}" for name in ("java.io", "java.util.zip", "java.nio", "java.lang")),
    *(f"java.base/{name}" for name in ("jdk.internal.misc", "jdk.internal.platform", "sun.net")),
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


def configuration(port: int, http_port: int, directory: Path, *, tokens: bool, settings: Sequence[str]) -> str:
    """Return the text of ``standalone.conf``; later settings win."""
    text = f"""\
clusterName=standalone
brokerServicePort={port}
webServicePort={http_port}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
loadBalancerEnabled=false
nettyMaxFrameSizeBytes=5253120
forceDeleteNamespaceAllowed=true
"""
    if tokens:
        text += _AUTHENTICATION.format(directory=directory)
    return text + "".join(f"{setting}\n" for setting in settings)


def signed_token(secret: bytes, role: str) -> str:
    """Return a JSON web token of a role, signed with HS256."""

    def encoded(part: bytes) -> str:
        return base64.urlsafe_b64encode(part).rstrip(b"=").decode()

    text = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": role}))
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), 'sha256'))}"


def java_command(root: Path, directory: Path) -> list[str]:
    """Return the command that runs it with the settings in a directory."""
    drivers = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
    return [
        # It runs for minutes: compiling it well, and collecting its garbage in several threads, would never pay off.
        *("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
        *("-Xmx1g", "-XX:MaxDirectMemorySize=1g"),
        *(word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dbookkeeper.metadata.bookie.drivers={drivers}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={drivers}ClientDriver",
        *("-cp", f"{root}/.cache/java-tools/standalone/*", "org.apache.pulsar.PulsarStandaloneStarter"),
        *("--config", f"{directory}/standalone.conf", "--metadata-dir", f"{directory}/metadata"),
        *("--bookkeeper-dir", f"{directory}/bookkeeper", "-a", "127.0.0.1", "-nfw", "-nss"),
    ]


def answers(http_port: int, token: str | None) -> bool:
    """Whether it lists the namespace that it makes when it is ready."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://127.0.0.1:{http_port}/admin/v2/namespaces/public", headers=headers)
    # A proxy has no business between two processes of one machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=2) as response:
            return b"public/default" in response.read()
    except OSError:
        return False


def await_ready(process: subprocess.Popen[bytes], http_port: int, token: str | None) -> bool:
    """Wait until it answers. Returns whether it does; it may have ended instead."""
    end = time.monotonic() + START_WITHIN_S
    while time.monotonic() < end:
        if answers(http_port, token):
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.5)
    return False


def serve(root: Path, directory: Path, http_port: int, token: str | None) -> int:
    """Run it until it ends, or this process is to. Returns the exit code."""
    with (directory / "log").open("wb") as log:
        # In this process's group, so that ending the group ends both.
        process = subprocess.Popen(
            java_command(root, directory), cwd=root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        if await_ready(process, http_port, token):
            print("ready", flush=True)
            return exit_code(process.wait())
    finally:
        process.terminate()
        process.wait()
    print(f"scripts/pulsar-standalone: it did not start, see {directory}/log", file=sys.stderr)
    return 1


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/pulsar-standalone",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help='admit only who has a token; makes DIRECTORY/secret to sign tokens with (HS256; "sub" is the role) and'
        ' DIRECTORY/token, of the role "admin", which may do everything',
    )
    parser.add_argument("port", metavar="PORT", type=int, help="of the binary protocol")
    parser.add_argument("http_port", metavar="HTTP-PORT", type=int)
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="its data and its log; created if missing")
    parser.add_argument("settings", metavar="SETTING=VALUE", nargs="*", help="of broker.conf")
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = options.directory.resolve()
    subprocess.run([root / "scripts" / "java-tools", "standalone"], check=True)
    os.umask(0o077)
    token = None
    if options.tokens:
        secret = secrets.token_bytes(32)
        (directory / "secret").write_bytes(secret)
        token = signed_token(secret, "admin")
        (directory / "token").write_text(token)
    settings = configuration(
        options.port, options.http_port, directory, tokens=options.tokens, settings=options.settings
    )
    (directory / "standalone.conf").write_text(settings)
    return serve(root, directory, options.http_port, token)
