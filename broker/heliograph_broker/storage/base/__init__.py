"""Files, environments and identity of a data directory, and what errors of the disk mean."""
