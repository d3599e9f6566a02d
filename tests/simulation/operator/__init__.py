"""Random histories of the operator on virtual time, with its API server and brokers in memory (docs/simulation.md)."""
