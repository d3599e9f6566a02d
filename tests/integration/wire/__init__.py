"""A raw client of the binary protocol for tests that assert exact commands."""
