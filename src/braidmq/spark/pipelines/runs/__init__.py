"""A run of a pipeline: session, queries, progress, failures, end."""
