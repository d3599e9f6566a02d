"""The enumerations of the core have the numbers and names of Pulsar's protocol: the edges convert without a table."""

from __future__ import annotations

from heliograph_api.policies.policies import SUBSCRIPTION_TYPES
from heliograph_api.protocol import wire_pb2 as wire
from heliograph_broker.messaging.clients.access_mode import AccessMode
from heliograph_broker.messaging.clients.subscription_type import SubscriptionType


def test_subscription_types_are_those_of_the_protocol_and_of_policies() -> None:
    assert {each.label: each.value for each in SubscriptionType} == dict(wire.CommandSubscribe.SubType.items())
    assert {each.label for each in SubscriptionType} == set(SUBSCRIPTION_TYPES)


def test_access_modes_are_those_of_the_protocol() -> None:
    assert {each.label: each.value for each in AccessMode} == dict(wire.ProducerAccessMode.items())
