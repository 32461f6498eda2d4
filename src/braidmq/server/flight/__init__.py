"""The Arrow Flight endpoint: the log for readers and writers on other machines."""
