"""Backups of BrokerClusters, and their schedules."""
