"""Segments: files of entries in chunks with checksums, read, rewritten, reclaimed and scrubbed."""
