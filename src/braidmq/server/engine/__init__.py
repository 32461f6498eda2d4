"""The engine: the broker, its log and its connections, driven turn by turn."""
