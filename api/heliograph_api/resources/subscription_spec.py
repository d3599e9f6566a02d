"""The spec of a Subscription: its topic, where it begins, its properties and policies."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, ClassVar, Final, NamedTuple

from pydantic import AfterValidator, Field

from heliograph_api.policies.policy_field import Level
from heliograph_api.values.names import COMPACTION
from heliograph_api.values.quoting import quoted

from .cel import InSchema, Rule
from .fields import AdoptionPolicy, DeletionPolicy, SubscriptionText, WhenUnreachable
from .references import ClusterReference, ResourceReference
from .specs import PolicyModel
from .unchanged import cluster_unchanged, unchanged

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_MAX_POSITION: Final = 40
_MESSAGE_ID: Final = "[0-9]{1,18}:[0-9]{1,18}"
_TIME: Final = (
    "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,3})?Z"
)
_POSITION: Final = f"^({EARLIEST}|{LATEST}|{_MESSAGE_ID}|{_TIME})$"
_NO_POSITION: Final = (
    "not a position; valid: earliest, latest, a message id (LEDGER:ENTRY), or a time such as 2026-01-31T12:00:00Z"
)
_BROKERS_OWN: Final = f"'{COMPACTION}' is the broker's own; valid: another name"


class Start(NamedTuple):
    """The place where a subscription begins: ``where`` is earliest or latest, unless an id or a time is given."""

    where: str = LATEST
    #: Ledger id and entry id.
    message_id: tuple[int, int] | None = None
    #: Publish time (ms since 1970).
    published_ms: int | None = None


def parse_position(text: str) -> Start:
    """Return what a position says. Raises :class:`ValueError`."""
    if not re.fullmatch(_POSITION, text, re.ASCII):
        raise ValueError(f"{quoted(text)} is {_NO_POSITION}")
    if text in (EARLIEST, LATEST):
        return Start(text)
    if re.fullmatch(_MESSAGE_ID, text):
        ledger, _, entry = text.partition(":")
        return Start(message_id=(int(ledger), int(entry)))
    try:
        return Start(published_ms=round(datetime.fromisoformat(text).timestamp() * 1000))
    except ValueError:
        raise ValueError(f"{quoted(text)} is {_NO_POSITION}") from None


def _position(text: str) -> str:
    parse_position(text)
    return text


def _not_the_brokers_own(text: str) -> str:
    if text == COMPACTION:
        raise ValueError(_BROKERS_OWN)
    return text


class SubscriptionSpec(PolicyModel):
    """A durable subscription of a persistent topic, on all its partitions."""

    levels = Level.SUBSCRIPTION
    cel_rules: ClassVar[tuple[Rule, ...]] = (unchanged("topicRef"), cluster_unchanged())

    topic_ref: ResourceReference
    """The Topic it belongs to; or the name of an existing topic, as tenant/namespace/topic or persistent://…. Cannot
    be changed."""
    name: (
        Annotated[SubscriptionText, AfterValidator(_not_the_brokers_own), Rule(f"self != '{COMPACTION}'", _BROKERS_OWN)]
        | None
    ) = None
    """The subscription's name in the broker; `metadata.name` if left out. Cannot be changed."""
    cluster_ref: ClusterReference | None = None
    """BrokerCluster or BrokerConnection of the subscription; default: its Topic's. Names the one that is meant if the
    topic has no resource. Cannot be changed once it is set. A broker without the operator ignores it."""
    position: Annotated[
        str,
        AfterValidator(_position),
        InSchema({"maxLength": _MAX_POSITION}),
        Rule(f"self.matches('{_POSITION}')", _NO_POSITION),
    ] = LATEST
    """Beginning of the subscription when it is created: the latest or earliest message, the message id LEDGER:ENTRY
    (of a topic without partitions), or the first message published at or after a time (2026-01-31T12:00:00Z). One that
    exists is never moved."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Properties of the subscription: texts by name."""
    deletion_policy: DeletionPolicy | None = None
    """Deletion of the resource deletes the subscription in the broker with its backlog, and disconnects its consumers
    (Delete), deletes it if it has no backlog and no consumers (DeleteIfEmpty), or keeps it (Retain).
    Default: Delete; Retain for a subscription that existed before the resource."""
    adoption_policy: AdoptionPolicy = "Review"
    """Treatment of a subscription that existed before the resource and has settings that the resource does not name:
    it is not changed until they are named (Review), or they are removed (Replace)."""
    deletion_when_unreachable: WhenUnreachable = "Wait"
    """A deletion whose broker does not answer waits for it (Wait), or ends after ten minutes (the operator's
    --deletion-wait) and leaves the data (Orphan)."""

    @property
    def start(self) -> Start:
        """The place where it begins."""
        return parse_position(self.position)
