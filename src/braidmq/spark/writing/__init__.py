"""Writing to topics from Spark: columns, writers, the exactly-once sink."""
