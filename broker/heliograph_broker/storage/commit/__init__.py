"""Group commit: entries and records of many topics in one transaction and one sync."""
