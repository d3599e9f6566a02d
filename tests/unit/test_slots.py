"""Frequent objects take no more memory than their slots: a base class without them would add a dictionary."""

from __future__ import annotations

import pytest
from heliograph_broker.messaging.acknowledgment.acknowledgment import Acknowledgments
from heliograph_broker.messaging.base.histograms import TopicMetrics
from heliograph_broker.messaging.base.timed_entries import TopicTiming
from heliograph_broker.messaging.clients.consumer import Consumer
from heliograph_broker.messaging.clients.pending_answers import PendingAnswers
from heliograph_broker.messaging.clients.producer import Producer
from heliograph_broker.messaging.clients.sent_counts import SentCounts
from heliograph_broker.messaging.compaction.compaction import TopicCompaction
from heliograph_broker.messaging.delivery.compacted_view import CompactedView
from heliograph_broker.messaging.delivery.dispatch_key_shared import KeySharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_shared import SharedDispatcher
from heliograph_broker.messaging.delivery.dispatch_single import SingleActiveDispatcher
from heliograph_broker.messaging.delivery.subscription import Subscription
from heliograph_broker.messaging.log.entry_log import EntryLog
from heliograph_broker.messaging.policies.backlog_quota import QuotaState
from heliograph_broker.messaging.policies.expiry import Expiry
from heliograph_broker.messaging.policies.rate_limits import DispatchGate, TopicLimits
from heliograph_broker.messaging.topic.non_persistent import NonPersistentSubscription, NonPersistentTopic
from heliograph_broker.messaging.topic.topic import Topic
from heliograph_broker.messaging.topic.topic_statistics import LogStatistics
from heliograph_broker.server.output import Output

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
    EntryLog,
    TopicTiming,
    PendingAnswers,
    TopicLimits,
    TopicMetrics,
    LogStatistics,
    Output,
    Topic,
    TopicCompaction,
]


@pytest.mark.parametrize("kind", MANY)
def test_instances_have_no_dictionary(kind: type) -> None:
    assert kind.__dictoffset__ == 0
