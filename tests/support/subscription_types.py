"""The subscription types by the short names that tests write often."""

from __future__ import annotations

from heliograph_broker.messaging.clients.subscription_type import SubscriptionType

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = SubscriptionType
