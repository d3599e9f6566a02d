"""What all commands share: how they reach a broker, read values and print results."""
