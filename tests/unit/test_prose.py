"""The words this project does not use: where they are found, where they are allowed, and that nobody uses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prose

ROOT = Path(__file__).resolve().parents[2]


def found(name: str, text: str) -> list[tuple[int, str]]:
    return [(each.line, each.words) for each in prose.check(name, text)]


def test_a_comment_is_read() -> None:
    assert found("a.py", "x = 1\n# Segments are written anew.\n") == [(2, "anew")]


def test_a_phrase_is_found_across_the_lines_of_a_comment() -> None:
    assert found("a.py", "# Kept for\n# ever, as nobody asked.\n") == [(1, "for ever")]


def test_comments_behind_neighbouring_lines_of_code_are_texts_of_their_own() -> None:
    assert found("a.py", "x = 1  # let\ny = 2  # go\n") == []


def test_a_docstring_is_read_with_the_line_of_the_words() -> None:
    assert found("a.py", '"""A module.\n\nIt is identified.\nObjects told by their names.\n"""\n') == [(4, "told by")]


def test_a_message_is_read_also_in_parts() -> None:
    source = 'raise ValueError(\n    f"{name} is kept "\n    "for ever"\n)\n'
    assert [words for _, words in found("a.py", source)] == ["for ever"]


def test_names_and_single_words_are_no_prose() -> None:
    assert found("a.py", 'forever = table["anew"]\n') == []


def test_a_private_word_in_a_name_is_found_where_it_is_defined_and_used() -> None:
    source = "class TopicLook:\n    figures = 1\n\n    def let_ledger_go(self) -> None:\n        self.figures += 1\n"
    assert found("a.py", source) == [(1, "TopicLook"), (2, "figures"), (4, "let_ledger_go"), (5, "figures")]


def test_names_of_other_words_and_of_tests_are_left_alone() -> None:
    names = ("lookup", "looked_up", "LOOK_AHEAD", "figure", "let", "_go_on", "aforesaid", "test_what_is_told")
    assert found("a.py", "".join(f"{name} = 1\n" for name in names)) == []


def test_a_docstring_that_opens_with_a_clause_is_found() -> None:
    source = '"""How it works.\n\nWhat follows.\n"""\nclass Topic:\n    """Which it is."""\n'
    source += '    a: int\n    """Where it is."""\n'
    source += '    def f(self) -> None:\n        """Whose it is."""\n'
    assert found("a.py", source) == [(1, "How"), (6, "Which"), (8, "Where"), (10, "Whose")]


def test_a_question_or_another_word_may_open_a_docstring() -> None:
    assert found("a.py", '"""What is it? A test."""\n') == []
    assert found("a.py", '"""Whether it is.\n\nWhich one it takes is open.\n"""\nx = "How it is"\n') == []


def test_every_word_of_the_rule_for_openings_is_found() -> None:
    for word in prose.OPENER_RULE.instead_of.split(", "):
        assert (1, word) in found("a.py", f'"""{word} it is."""\n')


@pytest.mark.parametrize("rule", prose.NAME_RULES, ids=lambda rule: rule.write)
def test_every_rule_for_names_finds_the_names_it_gives(rule: prose.Rule) -> None:
    for name in rule.instead_of.split(", "):
        assert found("a.py", f"{name} = 1\n") == [(1, name)]


def test_a_document_is_read_but_not_its_examples() -> None:
    text = "Made anew.\n\n```\nmade anew\n```\n\nCalled `anew` there.\n"
    assert found("a.md", text) == [(1, "anew")]


def test_rows_of_a_table_are_texts_of_their_own() -> None:
    assert found("a.md", "| let |\n| go |\n") == []


def test_values_and_comments_of_a_chart_are_read() -> None:
    assert found("a.yaml", "# -- Kept for ever.\nkeep: made anew\nsize: 1 # anew\n") == [
        (1, "for ever"),
        (2, "anew"),
        (3, "anew"),
    ]


def test_a_script_is_read_by_its_first_line() -> None:
    assert found("run", "#!/usr/bin/env bash\n# begins anew\n") == [(2, "anew")]
    assert found("run", "#!/usr/bin/env python3\n# begins anew\nforever = 1\n") == [(2, "anew")]


def test_a_word_is_allowed_on_its_line_for_a_reason() -> None:
    assert found("a.md", "A stranger. <!-- prose-allow(stranger): a role in the play -->\n") == []
    assert found("a.md", "A stranger, anew. <!-- prose-allow(stranger): a role in the play -->\n") == [(1, "anew")]
    assert found("a.md", "A stranger. <!-- prose-allow(stranger): -->\n") != []


@pytest.mark.parametrize("rule", prose.RULES, ids=lambda rule: rule.write)
def test_every_rule_finds_the_words_it_names(rule: prose.Rule) -> None:
    for words in rule.instead_of.split(", "):
        assert rule.pattern.search(words.replace("…", "broker")), words


def test_the_vocabulary_of_the_style_guide_is_the_list_of_rules() -> None:
    guide = (ROOT / "docs" / "style.md").read_text()
    assert prose.table() in guide, "run scripts/check-prose --table and copy it into docs/style.md"


def test_the_command_names_file_line_and_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Fine.\n\nKept for ever.\n")
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check-prose", str(tmp_path / "a.md")], capture_output=True, text=True
    )
    assert run.returncode == 1
    assert run.stdout == f'{tmp_path}/a.md:3: "for ever": write forever, indefinitely, permanently\n'


def test_the_command_passes_a_text_without_such_words(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Kept forever.\n")
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check-prose", str(tmp_path / "a.md")], capture_output=True
    )
    assert (run.returncode, run.stdout) == (0, b"")
