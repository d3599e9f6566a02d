"""The resource model: BrokerCluster, Tenant, Namespace and Topic, their fields and checks."""
