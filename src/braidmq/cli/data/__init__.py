"""Commands for the contents of a broker: messages, topics, queues, dead letters, top."""
