"""The operator's model of Kubernetes objects, and nothing that reaches an API server.

Kinds and keys, conditions and their reasons, the cache of the resources last seen, and the pauses between attempts.
"""
