"""What is asked for and where it lies, decided without Spark: options, positions, ranges, topics."""
