"""Unit tests of security: who a client is, and what it may do."""
