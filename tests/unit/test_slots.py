"""What a broker has many of takes no more memory than its slots: a base class without them would add a dictionary."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.backlog_quota import QuotaState
from heliograph_broker.messaging.compacted_view import CompactedView
from heliograph_broker.messaging.compaction import TopicCompaction
from heliograph_broker.messaging.consumer import Consumer
from heliograph_broker.messaging.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.dispatch_shared import SharedDispatcher
from heliograph_broker.messaging.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.expiry import Expiry
from heliograph_broker.messaging.non_persistent import NonPersistentSubscription, NonPersistentTopic
from heliograph_broker.messaging.producer import Producer
from heliograph_broker.messaging.subscription import Subscription
from heliograph_broker.messaging.topic import Topic

MANY = [
    CompactedView,
    Consumer,
    Expiry,
    KeySharedDispatcher,
    NonPersistentSubscription,
    NonPersistentTopic,
    Producer,
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
