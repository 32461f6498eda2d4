"""The golden vectors: frames of each strand, byte for byte."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "vectors"


def vectors(strand: str) -> dict[str, Any]:
    """Return the vectors of a strand."""
    loaded: dict[str, Any] = json.loads((DIRECTORY / f"{strand}.json").read_text("utf-8"))
    return loaded
