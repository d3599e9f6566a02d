"""Reconciles Users: their grants in brokers, and their credentials in Secrets."""
