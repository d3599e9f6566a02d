"""Unit tests of authorization."""
