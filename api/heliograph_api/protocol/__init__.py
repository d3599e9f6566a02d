"""Pulsar's binary protocol: generated messages, frames and ack sets, without I/O."""
