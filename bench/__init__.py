"""The benchmarks: BraidMQ beside its peers on the same machine. Not shipped, not a test."""
