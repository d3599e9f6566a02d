"""Routes for policies of topics and namespaces, made from one table."""
