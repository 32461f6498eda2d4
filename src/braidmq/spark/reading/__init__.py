"""Reading the log with Spark: batch and stream, offsets, filters, partitions."""
