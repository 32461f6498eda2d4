"""Wheels without the network: ours from the sources, others from installed packages."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email import message_from_string
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS_MAX: Final = 100


def clean_environment() -> dict[str, str]:
    """Return the environment without variables that lead back to the source tree."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BRAIDMQ_", "PYTHON"))}
    return {**kept, "BRAIDMQ_PURE": "1"}


def build(place: Path) -> Path:
    """Build our wheel as a user's pip would, from a copy, as a build leaves files behind."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    unwanted = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", place / "src", ignore=unwanted)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "dist", "."],
        check=True,
        cwd=place,
        env=clean_environment(),
        timeout=SECONDS_MAX,
    )
    (built,) = (place / "dist").glob("*.whl")
    return built


def renumber(wheel: Path, place: Path, version: str) -> Path:
    """Return a copy of *wheel* with another version number."""
    name, old, tags = wheel.name.split("-", 2)
    before, after = f"{name}-{old}.dist-info/", f"{name}-{version}.dist-info/"
    made = place / f"{name}-{version}-{tags}"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w") as target:
        for member in source.namelist():
            data = source.read(member)
            if member == f"{before}METADATA":
                data = data.replace(
                    f"\nVersion: {old}\n".encode(), f"\nVersion: {version}\n".encode()
                )
            elif member == f"{before}RECORD":
                data = data.replace(before.encode(), after.encode())
            target.writestr(member.replace(before, after), data)
    return made


def required(wheel: Path) -> list[str]:
    """Return the requirements of *wheel*, extras included."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_string(file.read(name).decode("utf-8"))
    return metadata.get_all("Requires-Dist", [])


def needed(wheel: Path, *extras: str) -> list[Distribution]:
    """Return the installed dependencies of *wheel*, with extras or none, recursively."""
    found: dict[str, Distribution] = {}
    ours = required(wheel)
    waiting = [(ours, extra) for extra in ("", *extras)]
    while waiting:
        lines, chosen = waiting.pop()
        for line in lines:
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": chosen}):
                continue
            if wanted.name == "braidmq":  # an extra that includes others
                waiting.extend((ours, more) for more in wanted.extras)
                continue
            installed = distribution(wanted.name)
            its = [*wanted.extras] if installed.name in found else ["", *wanted.extras]
            waiting.extend((installed.requires or [], more) for more in its)
            found[installed.name] = installed
    return list(found.values())


def size_bytes(distributions: Iterable[Distribution]) -> int:
    """Return the size of installed packages, without bytecode."""
    files = [path for one in distributions for path in one.files or ()]
    return sum(
        Path(str(path.locate())).stat().st_size
        for path in files
        if _belongs_to_the_wheel(path.parts)
    )


def link_dependencies(environment: Path, wheel: Path, *extras: str) -> None:
    """Link the dependencies of *wheel*, and nothing else, into an empty environment."""
    (site,) = environment.glob("lib/python*/site-packages")
    for installed in needed(wheel, *extras):
        for path in installed.files or ():
            if _belongs_to_the_wheel(path.parts):
                place = site / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(Path(str(path.locate())))


def pack(installed: Distribution, place: Path) -> Path:
    """Pack an installed package into a wheel again, without its generated scripts."""
    files = [path for path in installed.files or () if _belongs_to_the_wheel(path.parts)]
    (about,) = [path for path in files if path.name == "WHEEL"]
    tags = [
        line[5:].split("-")
        for line in about.read_text().splitlines()
        if line.startswith("Tag: ")
    ]
    tag = "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))
    name = re.sub(r"[-_.]+", "_", installed.name)
    made = place / f"{name}-{installed.version}-{tag}.whl"
    with zipfile.ZipFile(made, "w") as target:
        for path in files:
            if path.name != "RECORD":
                target.write(str(path.locate()), str(path))
        target.writestr(str(about.with_name("RECORD")), _record(map(str, files)))
    return made


def _belongs_to_the_wheel(parts: tuple[str, ...]) -> bool:
    return ".." not in parts and "__pycache__" not in parts


def _record(paths: Iterable[str]) -> str:
    return "".join(f'"{path}",,\n' for path in paths)
