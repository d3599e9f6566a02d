"""Acknowledgments of a subscription, and the topic as its subscriptions know it."""
