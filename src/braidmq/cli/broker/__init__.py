"""Commands about a broker itself: serve, config, keys, discovery, its log, doctor."""
