"""Output of the admin tools, in a form that is the same for every run: without times, identifiers and measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.ran import Ran

#: Fields of statistics that are no measurements.
_COUNTED = frozenset(
    ("msgBacklog", "msgInCounter", "numberOfEntries", "entriesAddedCounter", "partitions", "state", "type", "messages")
)
#: Fields that Pulsar fills a while after the fact.
_AT_TIMES = frozenset(("oldestBacklogMessageSubscriptionName", "underReplicated"))
#: The topic of a namespace's policies, which Pulsar makes for itself at some time.
_OWN_TOPIC = "/__change_events"
_SET = re.compile(r"\[(\w+(?:, \w+)+)\]")
_REPLACED = (
    # The tool prints a call that may have ended, not its result.
    (re.compile(r'\{\s*"done" : [^}]*"numberOfDependents" : \d+\s*\}'), "{call}"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)"), "{time}"),
    (re.compile(r"\b1[789]\d{11}\b"), "{time}"),
    (re.compile(r'(ledgerId"? ?: ?)\d+'), r"\g<1>{ledger}"),
    (re.compile(r"(Message ID: |terminated at |offload [a-z ]*: )\d+"), r"\g<1>{ledger}"),
    (re.compile(r"(?m)^\d{1,19}(:\d+:-?\d+(?::-?\d+)?)$"), r"{ledger}\1"),
    # Where a name is hashed, it falls elsewhere each time.
    (re.compile(r"0x[0-9a-f]{8}_0x[0-9a-f]{8}"), "{bundle}"),
)
#: A replacement that stands for a number or an object.
_PLACEHOLDER = re.compile(r'(?<!["\w])\{(?:ledger|time|call)\}')
#: The broker does not know the call, which is no answer to it.
_UNKNOWN = re.compile(
    r'is not a path of this API|is not possible on|"servlet":.*"message": ?"(?:Not Found|Method Not Allowed)"',
    re.DOTALL,
)


class Answer(NamedTuple):
    """A tool's exit code or a library's status, 0 for success, with what was printed or returned, or the refusal."""

    code: int
    text: str

    def agrees(self, other: Answer) -> bool:
        """Whether both say the same. Refusals of one code do, in whatever words, unless one does not know the call.

        Where ``other``, which is Pulsar's, is a failure of its own (500), a refusal with any status will do.
        """
        if self.code and other.code:
            unknown = bool(_UNKNOWN.search(self.text))
            return unknown == bool(_UNKNOWN.search(other.text)) and (unknown or other.code in (self.code, 500))
        return self.code == other.code and _canonical(self.text) == _canonical(other.text)


def _canonical(text: str) -> str:
    """Return JSON with its members in alphabetic order: Java lists those of a class in another order now and then."""
    if text[:1] not in ("{", "["):
        return text
    try:
        return json.dumps(json.loads(_PLACEHOLDER.sub(r'"\g<0>"', text)), sort_keys=True)
    except ValueError:
        return text


def normalised(ran: Ran, names: Mapping[str, str], *, shape: bool, opaque: bool, unordered: bool) -> Answer:
    """Return what of an answer is compared, with ``names`` replaced: see :class:`tests.support.verbs.Table`."""
    if ran.code:
        text = _replaced(" ".join(ran.err.split("\nReason:")[0].split()), names)
        return Answer(ran.code, text if len(text) <= 300 else text[:300].rpartition(" ")[0])
    text = ran.out.strip()
    if opaque:
        return Answer(0, "…" if text else "")
    if shape:
        try:
            return Answer(0, _replaced(json.dumps(_shape(json.loads(text), "")), names))
        except ValueError:
            return Answer(0, _replaced(text, names))
    text = _replaced(text, names)
    return Answer(0, _in_order(text) if unordered else text)


def _in_order(text: str) -> str:
    # The lines of a tool have no order, or the lists of a library.
    if text[:1] == "[" or (text[:1] == "{" and "\n" not in text):
        return json.dumps(_sorted(json.loads(text)))
    text = _SET.sub(lambda found: f"[{', '.join(sorted(found[1].split(', ')))}]", text)
    return "\n".join(sorted(text.splitlines()))


def _sorted(value: Any) -> Any:
    match value:
        case dict():
            return {name: _sorted(each) for name, each in value.items()}
        case list():
            return sorted(value)
    return value


def _replaced(text: str, names: Mapping[str, str]) -> str:
    for name, replacement in names.items():
        text = text.replace(name, replacement)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text


def _shape(value: Any, name: str) -> Any:
    match value:
        case dict():
            # A field without a value is as good as none.
            return {
                key: _shape(value[key], key)
                for key in sorted(value)
                if value[key] is not None and key not in _AT_TIMES and not key.endswith(_OWN_TOPIC)
            }
        case list():
            return [_shape(value[0], "")] if value else []
        case bool() | None:
            return value
        case _ if name in _COUNTED:
            return value
        case int() | float():
            return "number"
    return "text"
