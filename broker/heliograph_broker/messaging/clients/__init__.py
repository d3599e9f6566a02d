"""Producers and consumers, their deliveries, and which consumer a key belongs to."""
