"""Errors between Spark and a topic, with the name of the object concerned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import _pulsar


class PulsarSourceError(Exception):
    """A query cannot go on; the text names the option, topic, position or message that it is about."""


class OptionError(PulsarSourceError):
    """An option is unknown, is missing, contradicts another one or has a value that cannot be understood."""


class DataLossError(PulsarSourceError):
    """Messages that the query was to read are not stored any more."""


class SchemaError(PulsarSourceError):
    """A topic's schema, or a message that does not fit it, cannot become columns."""


class JobError(PulsarSourceError):
    """A job cannot be done; the text is one line and names what was wrong and what would be right."""


class MissingFileError(JobError):
    """A file that a job reads is not there."""


_REASONS: dict[type[Exception], str] = {
    _pulsar.AuthenticationError: "the credentials were refused (pulsar.client.authPluginClassName, .authParams)",
    _pulsar.AuthorizationError: "these credentials do not allow it (pulsar.client.authParams)",
    _pulsar.ConnectError: "no connection could be made (service.url)",
    _pulsar.TopicNotFound: "there is no such topic",
    _pulsar.InvalidUrl: "the address cannot be understood (service.url)",
    _pulsar.InvalidTopicName: "the topic's name is not valid",
    _pulsar.IncompatibleSchema: "the topic has another schema",
    _pulsar.ConsumerBusy: "the subscription is in use by another consumer",
    _pulsar.ProducerBusy: "a producer of this name is connected already",
    _pulsar.Timeout: "there was no answer in time",
}


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turn a failure of the client into a :class:`PulsarSourceError` with ``what`` was being done and why it failed."""
    try:
        yield
    except _pulsar.PulsarException as error:
        reason = _REASONS.get(type(error))
        raise PulsarSourceError(f"{what}: {reason + '; ' if reason else ''}{error}") from error
