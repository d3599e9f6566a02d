"""The ledgers of the store: their ids, their entries as they are read back, and which of them are deleted."""
