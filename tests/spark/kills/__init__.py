"""Jobs that are killed at random moments and started again, and whether they write every message once."""
