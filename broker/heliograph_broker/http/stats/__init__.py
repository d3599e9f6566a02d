"""Statistics of topics and of the broker, as JSON."""
