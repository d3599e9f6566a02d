"""What broker, operator and pipeline share: the resource model, the protocol, the admin client, the log's format."""

__version__ = "0.1.0"
