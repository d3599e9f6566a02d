"""Unit tests of the HTTP port's parts that need no server."""
