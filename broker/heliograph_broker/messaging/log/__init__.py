"""A topic's entries and records: ledgers, cursors, retention, and entries that are lost."""
