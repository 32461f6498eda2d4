"""The processes below another one: a JVM, and the Python workers that come and go with it."""

from contextlib import suppress

import psutil


def family_of(process: psutil.Process) -> list[tuple[str, psutil.Process]]:
    """Return the processes below *process*, with their names; those just gone are left out."""
    found = []
    for member in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found.append((member.name(), member))
    return found
