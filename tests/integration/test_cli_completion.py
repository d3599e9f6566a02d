"""Completion by the shell: the script that is installed, run by bash, and what it is answered for zsh and fish."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
CONTEXTS = """
contexts:
  staging: {http-url: "http://127.0.0.1:1"}
  stable: {http-url: "http://127.0.0.1:1"}
  other: {http-url: "http://127.0.0.1:1"}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a person who has contexts, whose brokers are not there."""
    config = tmp_path / ".config" / "heliograph" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(CONTEXTS)
    config.chmod(0o600)
    return tmp_path


def run(home: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    if path := os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] = path
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def bash(home: Path, *lines: str) -> str:
    """Return what a bash prints that reads its start-up file and runs some lines."""
    script = "\n".join([f". {shlex.quote(str(home / '.bashrc'))}", *lines])
    done = run(home, "bash", "--noprofile", "--norc", "-c", script)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture
def installed(home: Path) -> Path:
    # With a command after it, for bash would become the command itself, and be no shell to find.
    done = run(home, "bash", "--noprofile", "--norc", "-c", "heliograph --install-completion; exit $?")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bash completion installed in" in done.stdout
    return home


def completed(home: Path, line: str) -> list[str]:
    """Return what bash offers for the last word of a line, as its Tab key makes it ask."""
    words = line.split(" ")
    array = " ".join(map(shlex.quote, words))
    out = bash(
        home,
        # The function that the script has registered for the command.
        "function=$(complete -p heliograph); function=${function##*-F }; function=${function% heliograph}",
        f"COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}",
        '"$function" heliograph; printf "%s\\n" "${COMPREPLY[@]}"',
    )
    return sorted(out.split())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("heliograph sta", ["standalone"]),
        ("heliograph topics grant", ["grant-permission"]),
        ("heliograph namespaces grant", ["grant-permission", "grant-subscription-permission"]),
        ("heliograph topics list --inc", ["--include-system-topic"]),
        ("heliograph topics list -o ", ["json", "text"]),
        ("heliograph auth can-i --rol", ["--role"]),
        ("heliograph --context sta", ["stable", "staging"]),
        ("heliograph topics list --context o", ["other"]),
        ("heliograph context use ", ["other", "stable", "staging"]),
        ("heliograph topics stats ord", []),
    ],
)
def test_bash_completes_commands_options_values_and_contexts(installed: Path, line: str, offered: list[str]) -> None:
    assert completed(installed, line) == offered


def test_it_is_installed_once(installed: Path) -> None:
    before = (installed / ".bashrc").read_text()
    done = run(installed, "bash", "--noprofile", "--norc", "-c", "heliograph --install-completion; exit $?")
    assert done.returncode == 0
    assert (installed / ".bashrc").read_text().count("heliograph") == before.count("heliograph") == 1


def test_the_script_is_shown_without_being_installed(home: Path) -> None:
    done = run(home, "bash", "--noprofile", "--norc", "-c", "heliograph --show-completion; exit $?")
    assert done.returncode == 0
    assert "complete -o default -F _heliograph_completion heliograph" in done.stdout
    assert not (home / ".bashrc").exists()


def test_contexts_that_cannot_be_read_are_no_error_of_the_line(installed: Path) -> None:
    (installed / ".config/heliograph/config.yaml").write_text("contexts: [")
    assert completed(installed, "heliograph --context sta") == []


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "heliograph topics gr"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "heliograph topics gr", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_are_answered(home: Path, shell: str, variables: dict[str, str]) -> None:
    done = run(home, "heliograph", _HELIOGRAPH_COMPLETE=f"complete_{shell}", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "grant-permission" in done.stdout
    assert "revoke-permission" not in done.stdout
    source = run(home, "heliograph", _HELIOGRAPH_COMPLETE=f"source_{shell}")
    assert f"_HELIOGRAPH_COMPLETE=complete_{shell}" in source.stdout
    if (path := shutil.which(shell)) is not None:
        script = home / "completion"
        script.write_text(source.stdout)
        assert run(home, path, "-n", str(script)).returncode == 0
