"""Tenant, Namespace and Topic: applies them to the right broker, deletes them there, and watches brokers for drift."""
