"""CustomResourceDefinitions and their documentation, made from the resource model."""
