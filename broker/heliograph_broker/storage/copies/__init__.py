"""A data directory as a whole: backup, restore, inspection, salvage."""
