"""The Vibe strand on the server: connections, deliveries, queue management."""
