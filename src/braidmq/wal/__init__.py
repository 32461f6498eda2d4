"""The write-ahead log: an append-only log of opaque records that survives a power cut.

All it knows about messages is what the injected `describe` tells it. It never reads a clock.
"""
