"""Commands for a broker itself: serve, config, keys, discover, wal, doctor."""
