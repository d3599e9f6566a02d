"""Who a client is, what it may do, and the encryption of its connection."""
