"""Heliograph: a message broker that speaks Apache Pulsar's protocol."""
