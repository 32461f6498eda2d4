"""Counts with their nouns, for texts that people read."""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, for example `1 letter` and `1,000 letters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
