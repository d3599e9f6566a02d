"""Pulsar's binary protocol: the generated messages, how frames are read and encoded, and ack sets, without I/O."""
