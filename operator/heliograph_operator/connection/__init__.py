"""BrokerConnection: checks brokers that somebody else runs, and opens the sessions with them."""
