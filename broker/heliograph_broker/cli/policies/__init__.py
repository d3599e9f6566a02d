"""Commands that read and set policies, made from one table."""
