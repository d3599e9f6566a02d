"""The HTTP port: Pulsar's admin REST and lookup, Heliograph's apply, metrics and health."""
