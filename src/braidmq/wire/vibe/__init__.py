"""The Vibe strand: named queues over TCP, JSON payloads, delivery pushed to subscribers."""
