"""Frequent objects take no more memory than their slots: a base class without them would add a dictionary."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.acknowledgment.acknowledgment import Acknowledgments
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.sent_counts import SentCounts
from heliograph_broker.messaging.compaction.compaction import TopicCompaction
from heliograph_broker.messaging.delivery.compacted_view import CompactedView
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_shared import SharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.messaging.policies.expiry import Expiry
from heliograph_broker.messaging.policies.rate_limits import DispatchGate
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription, NonPersistentTopic
from heliograph_broker.messaging.topic.topic import Topic

MANY = [
    Acknowledgments,
    CompactedView,
    Consumer,
    DispatchGate,
    Expiry,
    KeySharedDispatcher,
    NonPersistentSubscription,
    NonPersistentTopic,
    Producer,
    SentCounts,
    QuotaState,
    SharedDispatcher,
    SingleActiveDispatcher,
    Subscription,
    Topic,
    TopicCompaction,
]


@pytest.mark.parametrize("kind", MANY)
def test_instances_have_no_dictionary(kind: type) -> None:
    assert kind.__dictoffset__ == 0
