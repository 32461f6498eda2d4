"""What the API asks of the running broker."""
