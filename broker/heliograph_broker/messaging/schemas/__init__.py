"""Schemas of topics: their versions, and which ones are compatible."""
