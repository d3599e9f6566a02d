"""One message by itself: its place in a batch, the hash of its key, its time to live, what policies ask of it."""
