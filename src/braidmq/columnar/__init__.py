"""Log segments as Arrow batches, for readers of many messages at once.

It reads what the log has made durable, and knows neither Spark nor the broker.
"""
