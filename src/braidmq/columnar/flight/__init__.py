"""The wire of the Arrow Flight endpoint: requests, failures, streams, stages."""
