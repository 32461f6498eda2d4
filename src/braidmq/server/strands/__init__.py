"""The strands: listeners, and the connection of each wire protocol."""
