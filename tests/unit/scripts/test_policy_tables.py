"""The tables of policies in the guides are those that the table of policies makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.policy_tables import MARKER, PROJECT, TABLES, main, renewed


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_current(name: str) -> None:
    text = (PROJECT / name).read_text("utf-8")
    assert renewed(text, TABLES[name]) == text, f"{name}: run scripts/generate-policies"


def test_only_the_table_after_the_marker_is_replaced() -> None:
    text = f"before\n\n{MARKER}\n\n| old |\n|---|\n\nafter\n\n| mine |\n"
    assert renewed(text, lambda: iter(["| new |"])) == f"before\n\n{MARKER}\n\n| new |\n\nafter\n\n| mine |\n"


def test_a_guide_without_the_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no line"):
        renewed("| old |\n", lambda: iter(()))


def test_a_stale_table_is_named_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.policy_tables.PROJECT", tmp_path)
    (tmp_path / "docs").mkdir()
    for name in TABLES:
        text = (PROJECT / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace("| `retention` |", "| `retentions` |"), "utf-8")
    assert main(["--check"]) == 1
    named = capsys.readouterr().err
    assert all(f"{name} is not current" in named for name in TABLES)
    assert main([]) == 0
    assert main(["--check"]) == 0
    for name in TABLES:
        assert (tmp_path / name).read_text("utf-8") == (PROJECT / name).read_text("utf-8")
