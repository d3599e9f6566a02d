"""Pulsar's binary protocol: generated messages, how frames are read and encoded, ack sets, without I/O."""
