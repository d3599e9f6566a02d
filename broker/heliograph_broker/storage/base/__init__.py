"""Files, environments and identity of a data directory, and the meaning of disk errors."""
