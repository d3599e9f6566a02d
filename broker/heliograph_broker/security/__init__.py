"""Security: the identity of a client, its rights, and the encryption of its connection."""
