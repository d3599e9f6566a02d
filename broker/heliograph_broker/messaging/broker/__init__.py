"""The whole broker: tenants, namespaces, topics by name, admission, and resources that are applied."""
