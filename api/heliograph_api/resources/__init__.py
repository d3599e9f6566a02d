"""The resource model: BrokerCluster, Tenant, Namespace, Topic and Subscription, their fields and checks."""
