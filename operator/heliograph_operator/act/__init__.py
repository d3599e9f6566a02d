"""Shared machinery of all reconcilers: the watch, the work queue and its workers, and what carries out decisions.

Finalizers, status, server-side apply and the sessions with brokers live here; which of them to use is decided above.
"""
