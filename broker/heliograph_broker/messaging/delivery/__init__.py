"""Dispatch: how a subscription's entries reach its consumers, by the type of the subscription."""
