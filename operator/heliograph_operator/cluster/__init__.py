"""BrokerCluster: creates, updates and deletes its Kubernetes objects, grows its volumes and reports its status."""
