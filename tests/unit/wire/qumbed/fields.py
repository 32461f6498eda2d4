"""The fields of a frame, compiled or not."""

from typing import Any


def fields_of(frame: object) -> dict[str, Any]:
    """Return the fields of a frame; a compiled one has no `__dict__`."""
    return {name: getattr(frame, name) for name in dir(frame) if not name.startswith("_")}
