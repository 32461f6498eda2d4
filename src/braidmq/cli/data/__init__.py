"""Commands about what a broker holds: messages, topics, queues, dead letters, live view."""
