"""Segments and their indexes as memory-mapped, verified columns."""
