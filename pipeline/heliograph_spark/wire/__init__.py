"""The pipeline's own client of Pulsar's binary protocol, for reading: entries, not messages."""
