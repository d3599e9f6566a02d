"""Heliograph."""
