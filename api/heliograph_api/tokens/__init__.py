"""Tokens (JWT) as Pulsar has them: the keys that sign and verify them, and making them. Knows no broker."""
