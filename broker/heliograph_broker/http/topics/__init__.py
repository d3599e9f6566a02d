"""Routes for topics, their messages, subscriptions, schemas and lookup."""
