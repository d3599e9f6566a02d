"""The jobs of ``heliograph-spark``: each is a function of a Spark session and its options, and a thin command."""
