"""A deterministic simulation of whole brokers: their clients, disk and clocks, and what goes wrong with them."""
