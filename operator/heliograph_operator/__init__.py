"""Heliograph's operator for Kubernetes: what BrokerCluster, Tenant, Namespace and Topic say, made so and kept so."""
