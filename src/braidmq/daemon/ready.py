"""Small files that say what is running: whole or not there."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write *text* to *path* so that nobody ever sees a part of it."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def remove_quietly(path: Path) -> None:
    """Remove *path* if it is there."""
    path.unlink(missing_ok=True)
