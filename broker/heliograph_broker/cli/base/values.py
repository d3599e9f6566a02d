"""Sizes, times, message ids and other values as ``pulsar-admin`` takes them, read into the numbers of the REST API."""

from __future__ import annotations

import re
from typing import Any

from heliograph_api.values.durations import InvalidDuration, parse_duration
from heliograph_api.values.names import TopicName
from heliograph_api.values.sizes import InvalidSize, parse_size

from .shared_options import usage_error

_MEBIBYTE = 1024 * 1024
_WHOLE = re.compile(r"-1|0|[1-9][0-9]{0,17}", re.ASCII)
_MESSAGE_ID = re.compile(r"(-1|[0-9]{1,18}):(-1|[0-9]{1,18})", re.ASCII)
_LATEST = 2**63 - 1


def size_bytes(option: str, text: str) -> int:
    """Return bytes (-1 without limit): ``10G``, ``512M``, ``1048576``."""
    try:
        return parse_size(int(text) if _WHOLE.fullmatch(text) else text)
    except InvalidSize as error:
        usage_error(f"{option}: {error}")


def size_megabytes(option: str, text: str) -> int:
    """Return whole MiB (-1 without limit), the unit of retention in the REST API."""
    size = size_bytes(option, text)
    if size > 0 and size % _MEBIBYTE:
        usage_error(f"{option} '{text}' is not a whole number of megabytes; valid: 1M, 10G (manifests take any size)")
    return size // _MEBIBYTE if size > 0 else size


def time_seconds(option: str, text: str) -> int:
    """Return seconds (-1 without limit): ``120``, ``90s``, ``3h``; a number alone counts seconds."""
    if _WHOLE.fullmatch(text):
        return int(text)
    milliseconds = time_milliseconds(option, text)
    if milliseconds > 0 and milliseconds % 1000:
        usage_error(f"{option} '{text}' is not a whole number of seconds; valid: 120, 90s, 3h, 7d")
    return milliseconds // 1000 if milliseconds > 0 else milliseconds


def time_minutes(option: str, text: str) -> int:
    """Return whole minutes (-1 without limit), the unit of retention; a number alone counts seconds."""
    seconds = time_seconds(option, text)
    if seconds > 0 and seconds % 60:
        usage_error(f"{option} '{text}' is not a whole number of minutes; valid: 10m, 3h, 7d (manifests take any time)")
    return seconds // 60 if seconds > 0 else seconds


def bare_minutes(option: str, text: str) -> int:
    """As :func:`time_minutes`, but a number alone counts minutes."""
    return int(text) if _WHOLE.fullmatch(text) else time_minutes(option, text)


def time_milliseconds(option: str, text: str) -> int:
    """Return milliseconds (-1 without limit); a number alone counts seconds."""
    if _WHOLE.fullmatch(text):
        return int(text) * 1000 if int(text) > 0 else int(text)
    try:
        return parse_duration(text)
    except InvalidDuration as error:
        usage_error(f"{option}: {error}; a number alone counts seconds")


def ttl_milliseconds(option: str, text: str) -> int:
    """As :func:`time_milliseconds`, but a bare 0 is never, as in Pulsar; ``0ms`` is at once."""
    return time_milliseconds(option, text) if text != "0" else -1


def shown_ttl(milliseconds: int | None) -> int | str | None:
    """Return a TTL as it is set: in seconds, 0 for never; one of no whole seconds as text with its unit."""
    if milliseconds is None:
        return None
    if milliseconds < 0:
        return 0
    whole = milliseconds > 0 and milliseconds % 1000 == 0
    return milliseconds // 1000 if whole else f"{milliseconds}ms"


def message_id(option: str, text: str) -> dict[str, Any]:
    """Return Pulsar's document of a position: ``latest``, ``earliest`` or ``LEDGER:ENTRY``."""
    if text == "latest":
        return {"ledgerId": _LATEST, "entryId": _LATEST, "partitionIndex": -1}
    if text == "earliest":
        return {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    match = _MESSAGE_ID.fullmatch(text)
    if match is None:
        usage_error(f"{option} '{text}' is not a message id; valid: latest, earliest or LEDGER:ENTRY, as in 12:0")
    return {"ledgerId": int(match[1]), "entryId": int(match[2]), "partitionIndex": -1}


def one_of(option: str, text: str, choices: tuple[str, ...]) -> str:
    """Return ``text`` if it is one of ``choices`` (in capitals or not)."""
    for choice in choices:
        if text.lower() == choice.lower():
            return choice
    usage_error(f"{option} '{text}' is not one of {', '.join(choices)}")


def topic_name(option: str, text: str) -> str:
    """Return a topic's full name, short forms completed; the empty text stays. Raises ``InvalidName``."""
    return str(TopicName.parse(text)) if text else text


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
