"""The protocol of the Arrow Flight endpoint: requests, failures, streams, stages."""
