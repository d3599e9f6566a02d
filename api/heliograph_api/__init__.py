"""Code that broker, operator and pipeline share: the resource model, the protocol, the admin client, log formats."""

__version__ = "0.1.0"
