"""Topic compaction: the last value of each key, in a ledger of its own."""
