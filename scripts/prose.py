"""Finds words and turns of phrase that this project does not use, in everything that is written for readers.

Readers are users (help texts, messages, log events, metric help, chart values, documents) and contributors (docstrings
and comments). :data:`RULES` is the only list of patterns; the table of ``docs/style.md`` is compared with it by a test.
The command is ``scripts/check-prose``.

A legitimate use is allowed for its line by a comment with the words and the reason: ``prose-allow(figure): a picture``.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Start of a sentence or clause: at the start of a block, or after a stop, a list mark or a table bar.
OPENS = r"(?:^|(?<=[.:;!?] )|(?<=\| )|(?<=[-*#] ))"


@dataclass(frozen=True)
class Rule:
    """One row of the vocabulary: what to write, which words it replaces, and the pattern that finds these."""

    write: str
    instead_of: str
    pattern: re.Pattern[str]


def _rule(write: str, instead_of: str, pattern: str) -> Rule:
    return Rule(write, instead_of, re.compile(pattern))


RULES: tuple[Rule, ...] = (
    _rule("recreate, rewrite, start again", "made anew, anew", r"(?i)\banew\b"),
    _rule("identified by, read from", "told by", r"(?i)\btold by\b"),
    _rule("release, drop, close", "let go", r"(?i)\b(?:let|lets|letting) go\b"),
    _rule("forever, indefinitely, permanently", "for ever", r"(?i)\bfor ever\b"),
    _rule("deletion, teardown", "farewell", r"(?i)\bfarewells?\b"),
    _rule("unknown, foreign, of another owner", "stranger", r"(?i)\bstrangers?\b"),
    _rule("silently; idle", "without a word", r"(?i)\bwithout a word\b"),
    _rule("reports, states, publishes", "says of itself, says of no …", r"(?i)\bsays? of (?:itself|themselves|no)\b"),
    _rule("is stated, is reported, is documented", "is said, are said", r"(?i)\b(?:is|are|was|were|be) said\b"),
    _rule("the caller, the reader, a client that", "whoever", r"(?i)\bwhoever\b"),
    _rule(
        "the noun that is meant: messages that are trimmed, the entries that failed",
        "What is …, What was …, What comes …, What cannot … at the start of a sentence",
        OPENS + r"What (?:is|was|are|were|cannot|could not|comes|came|of|lies|fail(?:s|ed)|stays)\b(?![^.;]*\?)",
    ),
    _rule(
        "the subject of the sentence first",
        "Of … at the start of a sentence, Who … at the start of a sentence",
        OPENS + r"(?:Of|Who)\b(?! course)(?![^.;]*\?)",
    ),
    _rule(
        "check, read, reconcile",
        "a look, each look",
        r"(?i)\b(?:a|the|each|every|one|next|first|last|another|this|no) looks?\b(?!-| like)",
    ),
    _rule("no longer applies, no longer leads", "holds no longer", r"\b(?:\w+s) no longer(?=[,.:;]|\s*$)"),
    _rule("after this time, for this time", "after so long, for so long", r"(?i)\b(?:after|for|within) so long\b"),
    _rule("metrics, statistics, counters, numbers, values", "figures", r"(?i)(?<![<}])\bfigures?\b(?![>{])"),
    _rule(
        "is notified, gets, knows",
        "is told, are told",
        r"(?i)\b(?:is|are|was|were|be|being|been) told\b(?! apart)",
    ),
    _rule("recreate", "make again, made again", r"(?i)\bma(?:k|d)e again\b"),
    _rule("replace", "take the place of, takes the place of", r"(?i)\btak(?:e|es|en|ing) the place of\b"),
    _rule("dispatch, deliver", "give out, gives out", r"(?i)\bgiv(?:e|es|ing) out\b"),
)

#: The same for names in programs. Names of tests are sentences of their own and are not checked.
NAME_RULES: tuple[Rule, ...] = (
    _rule("metrics, totals, counts, stats", "figures", r"(?i)figures"),
    _rule("check, read, snapshot", "look, TopicLook", r"(?:^|_)looks?(?:_at)?$|[a-z]Looks?$|^_?LOOKS?_(?!AHEAD)"),
    _rule("recreated, rewritten", "anew, made_anew", r"(?i)(?:^|_)anew(?:_|$)"),
    _rule("foreign, unknown", "stranger, strangers", r"(?i)stranger"),
    _rule("teardown, deletion", "farewell", r"(?i)farewell"),
    _rule("release, delete, discard", "let_go, let_ledger_go", r"(?:^|_)let_(?:\w+_)?go(?:_|$)"),
    _rule("output, result, the kind of text", "said, told, told_to_end", r"(?:^|_)(?:un)?(?:said|told)(?:_|$)"),
    _rule("counts_for_backlog", "takes_part", r"takes_part"),
)

#: The first word of a docstring.
OPENER_RULE = _rule(
    "the thing first: Ledgers of a topic, Returns the ledgers",
    "What, Who, Whose, Where, Which, How",
    r"^(?:What|Who|Whose|Where|Which|How)\b",
)

_CODE = re.compile(r"``[^`]*``|`[^`]*`|https?://\S+")
_ALLOW = re.compile(r"prose-allow\(([^)]+)\): *\w")
_HASH_FILES = {".yaml", ".yml", ".tpl", ".toml", ".sh"}
#: Written by generators out of texts that are checked where they are written, or quoting the words on purpose.
_NOT_READ = re.compile(
    r"^(?:crds/|charts/[^/]+/crds/|docs/verification/)|_pb2\.pyi?$|\.lock$|^LICENSE$"
    r"|^docs/style\.md$|^scripts/prose\.py$|^tests/unit/test_prose\.py$"
)


@dataclass(frozen=True)
class Block:
    """Lines that are read as one text: a paragraph, a run of comments, or a string."""

    lines: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Finding:
    """A private word in a line, and the rule that advises against it."""

    line: int
    words: str
    rule: Rule


def check(name: str, text: str) -> list[Finding]:
    """Return every use of a private word in the file ``name`` with the content ``text``, in the order of its lines."""
    return sorted(_findings(name, text), key=lambda each: each.line)


def _findings(name: str, text: str) -> Iterator[Finding]:
    source = text.splitlines()
    for block in blocks(name, text):
        for line, words, rule in _matches(block):
            if not _is_allowed(source[line - 1], rule):
                yield Finding(line, words, rule)
    if _is_python(name, text):
        yield from _names(text)
        yield from _openers(text)


def _openers(text: str) -> Iterator[Finding]:
    """Yield the docstrings, those of attributes included, that open with a clause instead of a subject or a verb."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for each in node.body:
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                sentence = re.split(r"(?<=[.?!])\s", each.value.value.strip(), maxsplit=1)[0]
                found = OPENER_RULE.pattern.search(sentence)
                if found and not sentence.endswith("?"):
                    yield Finding(each.lineno, found[0], OPENER_RULE)


def _names(text: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.NAME or token.string.startswith("test_"):
            continue
        for rule in NAME_RULES:
            if rule.pattern.search(token.string) and not _is_allowed(token.line, rule):
                yield Finding(token.start[0], token.string, rule)


def _is_allowed(line: str, rule: Rule) -> bool:
    allowed = _ALLOW.search(line)
    return allowed is not None and rule.pattern.search(allowed[1]) is not None


def _is_python(name: str, text: str) -> bool:
    return name.endswith(".py") or (text.startswith("#!") and "python" in text.split("\n", 1)[0])


def blocks(name: str, text: str) -> Iterator[Block]:
    """Yield the texts for readers in the file ``name``: all of a document, comments and strings of a program."""
    path = Path(name)
    if _is_python(name, text):
        yield from _comments(text)
        yield from _strings(text)
    elif path.suffix in (".md", ".txt"):
        yield from _paragraphs(text)
    elif path.suffix in _HASH_FILES or path.name == "Dockerfile" or text.startswith("#!"):
        yield from _hash_comments(text, also_values=path.suffix in (".yaml", ".yml"))


def table() -> str:
    """Return the vocabulary as the table of ``docs/style.md``."""
    rows = "".join(f"| {rule.write} | {rule.instead_of} |\n" for rule in RULES)
    return f"| write | not |\n|---|---|\n{rows}"


def _matches(block: Block) -> Iterator[tuple[int, str, Rule]]:
    starts, text = [], ""
    for _, line in block.lines:
        starts.append(len(text))
        text += _CODE.sub(lambda code: "`" * len(code[0]), line.strip()) + " "
    for rule in RULES:
        for match in rule.pattern.finditer(text):
            yield block.lines[bisect_right(starts, match.start()) - 1][0], match[0], rule


def _paragraphs(text: str, first: int = 1) -> Iterator[Block]:
    lines: list[tuple[int, str]] = []
    fenced = False
    for number, line in enumerate(text.splitlines(), first):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        # A heading, an item of a list and a row of a table are texts of their own.
        if fence or fenced or not line.strip() or re.match(r"\s*(?:[-*#|]|\d+\.)", line):
            if lines:
                yield Block(tuple(lines))
            lines = []
        if not (fence or fenced) and line.strip():
            lines.append((number, line))
    if lines:
        yield Block(tuple(lines))


def _comments(text: str) -> Iterator[Block]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    yield from _runs((token.start[0], token.line.lstrip().startswith("#"), token.string) for token in comments)


def _runs(comments: Iterable[tuple[int, bool, str]]) -> Iterator[Block]:
    """Comments on neighbouring lines are one text, but one behind code is a text of its own."""
    lines: list[tuple[int, str]] = []
    for number, alone, comment in comments:
        if lines and (not alone or number != lines[-1][0] + 1):
            yield Block(tuple(lines))
            lines = []
        lines.append((number, comment.lstrip("#: ")))
    if lines:
        yield Block(tuple(lines))


def _strings(text: str) -> Iterator[Block]:
    source = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or " " not in node.value.strip():
            continue
        last = node.end_lineno or node.lineno
        if "\n" in node.value and last > node.lineno:
            yield from _paragraphs(node.value, node.lineno)
        else:
            # A string may be joined from parts on several lines: it is reported where its first words are.
            start = node.value.strip()[:20]
            lines = range(node.lineno, last + 1)
            line = next((line for line in lines if start in source[line - 1]), node.lineno)
            yield Block(((line, node.value),))


def _hash_comments(text: str, *, also_values: bool) -> Iterator[Block]:
    comments = []
    for number, line in enumerate(text.splitlines(), 1):
        alone = line.lstrip().startswith("#")
        comment = line.lstrip() if alone else line.partition(" # ")[2]
        if line.startswith("#!"):
            continue
        if comment:
            comments.append((number, alone, comment))
        if also_values and not alone and " " in line.strip():
            yield Block(((number, line.partition(" # ")[0]),))
    yield from _runs(comments)


def _files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if not _NOT_READ.search(name)]


def main() -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(
        description="Find words that docs/style.md advises against, in all texts for readers."
    )
    parser.add_argument("files", nargs="*", help="files to check; all files of the repository by default")
    parser.add_argument("--table", action="store_true", help="print the vocabulary table of docs/style.md and end")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(table())
        return 0
    hits = 0
    for name in options.files or _files():
        try:
            text = (ROOT / name).read_text()
        except UnicodeDecodeError:
            continue  # a picture, an archive
        for finding in check(name, text):
            hits += 1
            print(f'{name}:{finding.line}: "{finding.words.strip()}": write {finding.rule.write}')
    if hits:
        print(f"{hits} uses of words that docs/style.md advises against", file=sys.stderr)
    return 1 if hits else 0
