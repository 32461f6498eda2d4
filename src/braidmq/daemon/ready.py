"""Small files that tell other processes what is running: complete, or absent."""

from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write *text* to *path*; readers see all of it or the file before."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def remove_quietly(path: Path) -> None:
    """Remove *path* if it is there."""
    path.unlink(missing_ok=True)
