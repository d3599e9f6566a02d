"""The parts that Spark runs: the data source, the sink, decoding and encoding, files."""
