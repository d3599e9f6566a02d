"""TLS of the broker's ports: certificates and keys from files, read again when these change."""
