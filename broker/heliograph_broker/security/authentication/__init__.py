"""Authentication: from what a client shows to its identity."""
