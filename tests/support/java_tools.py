"""Programs of others in Java: the place where ``scripts/java-tools`` puts them, and the start of a JVM."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".cache" / "java-tools"
SOURCES = ROOT / "tests" / "integration" / "java"
#: What runs is short, or mostly runs once: compiling it well would take longer than running it.
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: What a JVM itself has to say, such as a warning, goes to the standard error: the tests read answers from the standard
#: output.
QUICK = ("java", "-XX:+DisplayVMOutputToStderr", *BRIEF, "-cp")


def write_client_conf(directory: Path, http_url: str, service_url: str) -> Path:
    """Write the file that tells Pulsar's programs where the broker is; return its path."""
    path = directory / "client.conf"
    path.write_text(f"webServiceUrl={http_url}\nbrokerServiceUrl={service_url}\n")
    return path


def missing(kinds: str) -> str | None:
    """Return what keeps the tools of a set (such as ``client``) from running here, None if nothing does."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        return "no Java compiler on this machine"
    if not (FETCHED / f".installed-{kinds}").exists():
        return f"not fetched: run scripts/java-tools {kinds}"
    return None
