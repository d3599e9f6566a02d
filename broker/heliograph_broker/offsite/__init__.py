"""Backups in an object store or on another volume: what they consist of, and how they get there and back."""
