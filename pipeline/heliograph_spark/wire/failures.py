"""Errors between the pipeline and a broker: those that may pass, and those that do not."""

from __future__ import annotations

from heliograph_api.protocol import wire_pb2 as wire

from heliograph_spark.plan.credentials import REFUSED
from heliograph_spark.plan.errors import PulsarSourceError

#: Errors that another try does not mend; the others may be over in a moment, such as that of a topic being moved.
_FINAL = frozenset(
    {
        wire.AuthenticationError,
        wire.AuthorizationError,
        wire.ConsumerBusy,
        wire.ProducerBlockedQuotaExceededException,
        wire.ProducerFenced,
        wire.UnsupportedVersionError,
        wire.TopicNotFound,
        wire.SubscriptionNotFound,
        wire.TopicTerminatedError,
        wire.InvalidTopicName,
        wire.IncompatibleSchema,
        wire.ConsumerAssignError,
        wire.NotAllowedError,
    }
)


class Passing(PulsarSourceError):
    """The same request may succeed in a moment, on this connection or another one."""


class LinkLost(Passing):
    """A connection is gone, or none could be made."""


class NoAnswer(Passing):
    """A broker did not answer a request in time."""


class NotStored(PulsarSourceError):
    """A broker has lost a message but stored later ones of the same name, so it drops that message as a duplicate.

    A task that Spark repeats would not get this error again: the broker answers that it has the message. So no task may
    end with it; the driver has to end the query.
    """


class Refused(PulsarSourceError):
    """A broker answered a request with an error; ``code`` is a ``ServerError``, ``reason`` the broker's text."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: {_named(code)}: {reason}")
        self.code = code
        self.reason = reason


class PassingRefusal(Refused, Passing):
    """An error of a broker that may be over in a moment."""


def refusal(what: str, code: int, reason: str) -> Refused:
    """Return the error for a broker's answer to what was asked."""
    return Refused(what, code, reason) if code in _FINAL else PassingRefusal(what, code, reason)


def _named(code: int) -> str:
    if code in (wire.AuthenticationError, wire.AuthorizationError):
        return REFUSED if code == wire.AuthenticationError else "these credentials do not allow it"
    return wire.ServerError.Name(code)  # type: ignore[arg-type]
