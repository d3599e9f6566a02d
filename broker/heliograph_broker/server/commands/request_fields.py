"""Fields that several requests of clients have, decoded."""

from __future__ import annotations

from collections.abc import Iterable

from heliograph_api.protocol import wire_pb2 as wire
from heliograph_api.values.names import InvalidName, TopicName

from heliograph_broker.messaging.base.errors import InvalidTopicName


def parse_topic(text: str) -> TopicName:
    """Return the name a client sent. Raises :class:`InvalidTopicName`."""
    try:
        return TopicName.parse(text)
    except InvalidName as error:
        raise InvalidTopicName(str(error)) from error


def properties_of(pairs: Iterable[wire.KeyValue]) -> dict[str, str]:
    """Return the pairs as a dict."""
    return {pair.key: pair.value for pair in pairs}
