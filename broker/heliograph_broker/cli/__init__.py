"""The command ``heliograph``."""
