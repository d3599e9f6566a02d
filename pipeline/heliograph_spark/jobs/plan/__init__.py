"""What jobs decide and count without Spark."""
