"""The data directory: its files and their access, its identity, its records in LMDB, and its free space."""
