"""Every command that the guides show is run as it stands: the ``console`` blocks, and README's Python."""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Shown(NamedTuple):
    """A command of a guide and the lines it should print (none: the guide does not show any)."""

    command: str
    output: list[str]


def blocks(guide: Path, language: str) -> Iterator[str]:
    return (match[2] for match in _BLOCK.finditer(guide.read_text(encoding="utf-8")) if match[1] == language)


def commands(guide: Path) -> list[Shown]:
    found: list[Shown] = []
    for block in blocks(guide, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Shown(line[2:].partition("   #")[0].rstrip(), []))
            else:
                found[-1].output.append(line)
    return found


@pytest.mark.parametrize("guide", [g for g in GUIDES if commands(g)], ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_command_shown_works(guide: Path, broker_factory: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = broker_factory()
    broker.start()
    environment = os.environ | {
        "HELIOGRAPH_HTTP_URL": broker.http_url,
        "HELIOGRAPH_SERVICE_URL": broker.service_url,
        "HELIOGRAPH_CONFIG": str(tmp_path / "config.yaml"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for number, shown in enumerate(commands(guide)):
        if shown.command.startswith("heliograph standalone"):
            run_standalone(shown.command, tmp_path / f"standalone-{number}", environment)
            continue
        done = subprocess.run(
            ["bash", "-c", runnable(shown.command)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=450,
            check=False,
        )
        assert done.returncode == 0, f"{guide.name}: {shown.command}\n{done.stdout}\n{done.stderr}"
        if shown.output:
            assert done.stdout.splitlines() == shown.output, f"{guide.name}: {shown.command}"


def test_the_commands_of_the_runbooks_for_a_broker_work(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory()
    broker.start()
    environment = os.environ | {
        "HELIOGRAPH_HTTP_URL": broker.http_url,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    lines = {
        line
        for page in sorted((ROOT / "docs/runbooks").glob("*.md"))
        for each in blocks(page, "sh")
        for line in each.splitlines()
    }
    shown = sorted(line for line in lines if line.startswith(("heliograph ", "curl ")))
    assert len(shown) > 5
    script = [
        "heliograph topics create orders-dead",
        "heliograph topics create-subscription orders-dead -s billing",
    ]
    names = {"DEAD-LETTER-TOPIC": "orders-dead", "TENANT": "public", "NAMESPACE": "default", "TOPIC": "orders-dead"}
    for line in shown:
        command = line.replace("SUBSCRIPTION", "billing")
        if "DATA-DIRECTORY" in command:
            continue
        for name, value in names.items():
            command = command.replace(name, value)
        script.append(command.replace("curl -s", "curl -sf"))
    text = "set -eux\n" + "\n".join(script)
    done = subprocess.run(
        ["bash", "-c", text], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def runnable(command: str) -> str:
    """Return what the test runs for a command: itself, or less of it where all of it is another test's work."""
    if command == "./scripts/test":
        return "./scripts/test --help"
    if command == "./scripts/check":
        return "test -x scripts/check"
    if command == "./scripts/quickstart":
        return "./scripts/quickstart --limit 2000"
    return command


def run_standalone(command: str, data_dir: Path, environment: dict[str, str]) -> None:
    """Run a broker as shown, but on free ports and with data of its own, until it is ready; then end it."""
    arguments = [*shlex.split(command), "--data-dir", str(data_dir), "--broker-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                assert selector.select(120), f"{command}: not ready within 120 s"
            assert process.stdout.readline().startswith("ready pulsar://"), command
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0, command
        finally:
            process.kill()


def test_the_python_shown_in_readme_works(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory()
    broker.start()
    (program,) = blocks(ROOT / "README.md", "python")
    assert "pulsar://127.0.0.1:6650" in program
    done = subprocess.run(
        [sys.executable, "-c", program.replace("pulsar://127.0.0.1:6650", broker.service_url)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "customer-1 hello" in done.stdout.splitlines()
