"""Random histories of topics and of the queries that read them, compared with a model; see docs/pipeline.md."""
