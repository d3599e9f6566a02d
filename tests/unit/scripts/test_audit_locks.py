"""scripts/audit: what it says of known vulnerabilities, of exceptions, and of withdrawn versions."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scripts.audit_locks import (
    EXCEPTIONS,
    LOCKS,
    ROOT,
    Accepted,
    exceptions,
    judged,
    left_out,
    main,
    vulnerabilities,
    withdrawn,
)
from scripts.lock_files import LOCKS as ALL
from scripts.lock_files import pins

TODAY = date(2030, 1, 31)
#: As pip-audit answers.
ANSWER: dict[str, Any] = {
    "dependencies": [
        {"name": "good", "version": "1.0", "vulns": []},
        {
            "name": "bad",
            "version": "2.0",
            "vulns": [
                {"id": "PYSEC-2030-1", "fix_versions": ["2.1"], "aliases": ["CVE-2030-1"], "description": "x"},
                {"id": "PYSEC-2030-2", "fix_versions": [], "aliases": [], "description": "x"},
            ],
        },
        {"name": "odd", "skip_reason": "nobody knows it"},
    ],
    "fixes": [],
}
FIRST = "bad 2.0: CVE-2030-1, PYSEC-2030-1, fixed in 2.1"
SECOND = "bad 2.0: PYSEC-2030-2, not fixed yet"


def test_what_is_known_is_named_with_its_fix() -> None:
    found = list(vulnerabilities(ANSWER))
    assert judged(found, [], TODAY) == [FIRST, SECOND]
    assert left_out(ANSWER) == ["odd: nobody knows it"]


def test_an_exception_holds_until_its_day_and_by_any_name() -> None:
    found = list(vulnerabilities(ANSWER))
    by_alias = Accepted("CVE-2030-1", "not called", TODAY)
    assert judged(found, [by_alias], TODAY) == [SECOND]
    over = Accepted("PYSEC-2030-1", "not called", date(2030, 1, 30))
    assert judged(found, [over], TODAY) == [f"{FIRST}; its exception ended on 2030-01-30", SECOND]


def test_an_exception_that_nothing_needs_is_named() -> None:
    assert judged([], [Accepted("CVE-1", "fixed since", TODAY)], TODAY) == [f"{EXCEPTIONS}: nothing has CVE-1 any more"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('id = "CVE-1"\nreason = "x"', "exception 1: until is None; valid: a day such as 2030-01-31"),
        ('id = "CVE-1"\nreason = "x"\nuntil = "soon"', "exception 1: until is 'soon'; valid: a day such as 2030-01-31"),
        ('id = "CVE-1"\nreason = ""\nuntil = 2030-01-31', "exception 1: reason is ''; valid: a text"),
        ('id = "1"\nreason = "x"\nuntil = 2030-01-31\nby = 1', "unknown field 'by'; valid: id, reason, until"),
    ],
)
def test_an_exception_needs_a_reason_and_a_day(entry: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exceptions(f"[[exception]]\n{entry}\n")


def test_the_projects_exceptions_can_be_read() -> None:
    assert exceptions((ROOT / EXCEPTIONS).read_text()) == []
    shown = (ROOT / EXCEPTIONS).read_text().partition("\n")[2].replace("#  ", "")
    assert [each.id for each in exceptions(shown)] == ["PYSEC-2030-1"]


def test_bad_exceptions_end_it_before_anybody_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locks").mkdir()
    (tmp_path / EXCEPTIONS).write_text("[[exception]]\n")
    assert main([], tmp_path) == 2
    assert "exception 1: id is None; valid: a text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("yanked", "reason"),
    [("it deletes files", "it deletes files"), (True, "no reason is given"), (False, None), (None, None)],
)
def test_a_version_was_withdrawn_if_a_file_of_the_lock_was(yanked: str | bool | None, reason: str | None) -> None:
    page = {
        "files": [
            {"filename": "bad-1.0.tar.gz", "hashes": {"sha256": "0" * 64}, "yanked": "another version"},
            {"filename": "bad-2.0.tar.gz", "hashes": {"sha256": "2" * 64}},
            {"filename": "bad-2.0.whl", "hashes": {"sha256": "1" * 64}}
            | ({} if yanked is None else {"yanked": yanked}),
        ]
    }
    assert withdrawn(page, ["1" * 64, "2" * 64]) == reason


def test_the_locks_that_are_asked_about_have_every_pin() -> None:
    texts = {name: (ROOT / "locks" / f"{name}.lock").read_text() for name in ALL}
    asked = {pin for name in LOCKS for pin in pins(texts[name]).items()}
    assert {pin for text in texts.values() for pin in pins(text).items()} - asked == set()
