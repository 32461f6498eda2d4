"""A clone of the repository: commands that need more packages have make add them.

Only where the program runs from the clone's own `.venv`. Elsewhere the user decides what goes
into an environment, and gets a line that says what to type.
"""

import importlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from braidmq.base.extras import MissingExtraError

SPARK: Final = ("pyspark", "pyarrow")
_STEP: Final = ".venv/spark"


def require_spark(what: str) -> None:
    """Have Spark installed, in a clone; *what* needs it.

    Raises:
        MissingExtraError: It is not installed, and this is no clone or make failed.
    """
    if not _lacking(SPARK):
        return
    root = clone()
    if root is not None:
        print(f"{what} needs Apache Spark", file=sys.stderr, flush=True)
        _make(root, _STEP)
        importlib.invalidate_caches()
    for name in _lacking(SPARK):
        raise MissingExtraError(what, name, "spark")


def clone() -> Path | None:
    """Return the clone whose environment runs this program, if one does."""
    root = Path(__file__).resolve().parents[3]
    is_its_own = Path(sys.prefix).resolve() == root / ".venv" and (root / "Makefile").is_file()
    return root if is_its_own and shutil.which("make") else None


def _lacking(names: Sequence[str]) -> list[str]:
    return [name for name in names if find_spec(name) is None]


def _make(root: Path, step: str) -> None:
    # What make prints is about the set-up; stdout is for the result of the command.
    subprocess.run(  # noqa: S603 - a step of our own Makefile
        ["make", "--no-print-directory", "-C", str(root), step],  # noqa: S607 - from the user's path
        stdout=sys.stderr,
        check=False,
    )
