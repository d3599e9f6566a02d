"""Metrics for Prometheus, and lists of suspended tasks, damaged entries and ledgers in quarantine."""
