"""Metrics for Prometheus, and what is in trouble."""
