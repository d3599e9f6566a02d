"""Manifests: documents in YAML or JSON, read into resources, and the order to apply them in."""
