"""Access: API keys, users and their administration."""
