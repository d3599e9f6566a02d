"""Code that all commands share: they reach a broker, read values and print results with it."""
