"""Tables of Apache Iceberg: their catalog, their columns, and the record of what an archive has written."""
