"""The client of the admin REST API."""
