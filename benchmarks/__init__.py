"""Throughput, latency and CPU of a broker in a process of its own: ``benchmarks/run``."""
