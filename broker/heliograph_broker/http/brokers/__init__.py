"""Routes for the broker itself: clusters, health, backup, and manifests to apply."""
