"""Heliograph's Kubernetes operator: reconciles resources of its kinds with brokers.

``objects`` and ``decide`` are free of I/O, ``kube`` and ``act`` carry decisions out, ``cluster``, ``archive`` and
``policies`` are the reconcilers, and ``running`` puts them together.
"""
