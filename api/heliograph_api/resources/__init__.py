"""The resource model: the kinds of ``heliograph.dev/v1alpha1``, their fields and checks."""
