"""Numbers of things, in words."""


def counted(count: int, noun: str) -> str:
    """Return so many of something, for example `1 letter` and `1,000 letters`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
