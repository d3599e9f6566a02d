"""Access to the Kubernetes API server: the client, Events, namespaces, leader election, and the permissions needed."""
