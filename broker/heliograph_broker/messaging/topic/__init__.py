"""Topics, persistent and not, and the housekeeping that is done for them."""
