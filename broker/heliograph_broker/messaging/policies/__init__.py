"""The effect of policies on entries: expiry, dead letters, delays, quotas, rates, deduplication."""
