"""Requests and positions, decided without Spark: options, positions, ranges, topics."""
