"""Configuration: defaults, a file, the environment and flags, checked into one object."""
