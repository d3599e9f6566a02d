"""The smallest pieces of the store: entries, completions, tombstones, lost ranges, checksums of records, errors."""
