"""The fuzzer's targets without the fuzzer: the inputs that it kept, seeds, and bytes that hypothesis draws."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from heliograph_broker.security.authorization.authorizer import Authorizer
from heliograph_broker.security.authorization.needs import Decision
from heliograph_broker.server.commands.handlers import HANDLERS
from heliograph_broker.server.consumer_sink import SessionConsumers
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.command import main
from tests.fuzz.streams import parts_of
from tests.fuzz.target import Finding, Source, sized
from tests.fuzz.targets import NAMES, load
from tests.support.wire_client import Type
from tests.support.wire_specimens import SPECIMENS

#: These run with Spark's modules: tests/spark/test_fuzz_decoder.py.
_ELSEWHERE = {"decoder"}
_HERE = [name for name in NAMES if name not in _ELSEWHERE]
#: A whole broker for each input takes some milliseconds.
_EXAMPLES = {"commands": 60, "rest": 60, "secured": 60}


@pytest.mark.parametrize("name", _HERE)
def test_kept_inputs_show_no_defect(name: str) -> None:
    target = load(name)
    kept = corpus.load(name)
    assert kept, "scripts/fuzz --keep writes them"
    for data in [*target.seeds(), *kept]:
        assert len(data) <= target.max_bytes
        target.run(data)


@pytest.mark.parametrize("name", _HERE)
def test_any_bytes_show_no_defect(name: str) -> None:
    target = load(name)
    seeds = st.sampled_from(sorted(set(target.seeds())))

    @settings(max_examples=_EXAMPLES.get(name, 200), deadline=None)
    @given(st.one_of(st.binary(max_size=300), st.builds(_mixed, seeds, st.integers(0, 1 << 16), st.binary(max_size=9))))
    def run(data: bytes) -> None:
        target.run(data)

    run()


def _mixed(seed: bytes, at: int, put: bytes) -> bytes:
    at %= len(seed) + 1
    return seed[:at] + put + seed[at + len(put) // 2 :]


def test_the_kept_inputs_are_few() -> None:
    assert {path.stem for path in corpus.DIRECTORY.iterdir()} == {*NAMES, corpus.RECORDED}
    assert sum(path.stat().st_size for path in corpus.DIRECTORY.iterdir()) < 400 * 1024


def test_an_input_that_raises_is_shown_with_a_way_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.fuzz.targets import names

    (tmp_path / "input").write_bytes(b"\0orders")
    arguments = ["names", "--input", str(tmp_path / "input")]
    assert main(arguments) == 0
    monkeypatch.setattr(names, "_KINDS", [(lambda text: text[9], ValueError)])
    assert main(arguments) == 1
    output = capsys.readouterr().err
    assert "IndexError: string index out of range" in output
    assert "names: input 1 of 1 shows a defect: b'\\x00orders'" in output


def test_an_exception_that_a_broker_only_logs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(session: object, command: object) -> None:
        raise RuntimeError("a defect")

    commands = load("commands")
    monkeypatch.setitem(HANDLERS, Type.SEEK, broken)
    seek = b"\0\0" + b"".join(parts_of(SPECIMENS["seek"]))
    with pytest.raises(Finding, match="the broker logged unhandled error"):
        commands.run(seek)


def test_a_defect_that_gives_another_client_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = load("commands")
    monkeypatch.setattr(SessionConsumers, "send_message", lambda *_: None)
    with pytest.raises(Finding, match="the healthy client got"):
        commands.run(b"")


def test_a_right_that_nobody_gave_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    secured = load("secured")
    allowed = Decision(True, "a defect")
    monkeypatch.setattr(Authorizer, "decide", lambda *_: allowed)
    publishes = next(iter(secured.seeds()))
    with pytest.raises(Finding, match="clients without rights made"):
        secured.run(publishes)


def test_an_unknown_target_is_refused_by_name() -> None:
    asked = [sys.executable, "-m", "tests.fuzz.command", "commandos"]
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no target 'commandos'; valid: frames, commands" in done.stderr


def test_a_source_reads_what_was_written_and_then_nothing() -> None:
    source = Source(b"\5" + sized(b"ab") + b"c")
    assert (source.number(), source.sized(), source.ended) == (5, b"ab", False)
    assert (source.rest(), source.ended, source.number(8), source.sized()) == (b"c", True, 0, b"")
