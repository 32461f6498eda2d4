"""When setup.py compiles again. The compiled test runs prove that it compiles at all."""

import json
import shutil
from pathlib import Path

import pytest

import setup

HOT = '"""Hot."""\n\nfrom braidmq.base.limits import MIB\n\nLIMIT = MIB\n'
FAILED = "the compiler failed (C, on these sources)"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a small package with one hot module, which imports one of two cold modules."""
    real_list = setup.PACKAGE / "base" / "build.py"
    package = tmp_path / "src" / "braidmq"
    for name, text in {
        "broker/retry.py": HOT,
        "base/limits.py": "MIB = 1024 * 1024\n",
        "cli/main.py": "x = 1\n",
    }.items():
        (package / name).parent.mkdir(parents=True)
        (package / name).write_text(text)
    shutil.copy(real_list, package / "base" / "build.py")
    monkeypatch.setattr(setup, "SOURCES", tmp_path / "src")
    monkeypatch.setattr(setup, "PACKAGE", package)
    monkeypatch.setattr(setup, "STATE_FILE", tmp_path / "compiled.json")
    monkeypatch.setattr(setup, "why_interpreted", lambda: "")
    monkeypatch.delenv("BRAIDMQ_STRICT_BUILD", raising=False)
    return package


def built(package: Path, problem: str = "") -> None:
    """Leave the files that a build leaves."""
    state = {"fingerprint": setup.fingerprint(), "modules": [], "problem": problem}
    setup.STATE_FILE.write_text(json.dumps(state))
    if not problem:
        (package / "broker" / "retry.so").touch()


def test_a_fresh_build_is_current(package: Path) -> None:
    """A second setup does nothing."""
    built(package)

    assert "" == setup.why_stale()
    assert setup.is_current()


@pytest.mark.parametrize("name", ["broker/retry.py", "base/limits.py"])
def test_an_edit_that_affects_compiled_code_makes_it_stale(package: Path, name: str) -> None:
    """In hot modules, and in the modules they import, whose constants are compiled in."""
    built(package)
    (package / name).write_text((package / name).read_text().replace("MIB", "MIBI"))

    assert "sources have changed since they were compiled" == setup.why_stale()
    assert not setup.is_current()


def test_an_edit_elsewhere_changes_nothing(package: Path) -> None:
    """Work on the command line does not wait for the compiler."""
    built(package)
    (package / "cli" / "main.py").write_text("x = 2\n")

    assert setup.is_current()


def test_a_new_hot_module_makes_it_stale(package: Path) -> None:
    """The list of hot modules consists of patterns."""
    built(package)
    (package / "broker" / "expiry.py").write_text("x = 1\n")

    assert not setup.is_current()


def test_a_missing_library_is_noticed(package: Path) -> None:
    """Either all hot modules are compiled or none."""
    built(package)
    (package / "broker" / "retry.so").unlink()

    assert not setup.is_current()


def test_a_library_of_unknown_origin_is_not_trusted(package: Path) -> None:
    """Without a record of the build, the source of a library is unknown."""
    (package / "broker" / "retry.so").touch()

    assert "compiled modules have come or gone since the last build" == setup.why_stale()


def test_an_interpreted_package_is_never_stale(package: Path) -> None:
    """Python then runs the sources themselves."""
    built(package, problem="BRAIDMQ_PURE=1")
    (package / "broker" / "retry.py").write_text("x = 1\n")

    assert "" == setup.why_stale()


def test_a_pure_package_is_compiled_once_braidmq_pure_is_unset(package: Path) -> None:
    """BRAIDMQ_PURE applies only while it is set."""
    built(package, problem="BRAIDMQ_PURE=1")

    assert not setup.is_current()


def test_a_failed_compilation_is_repeated_only_for_new_sources(package: Path) -> None:
    """Otherwise every command would first run the failing compiler."""
    built(package, problem=FAILED)

    assert setup.is_current()


def test_a_strict_build_repeats_a_failed_compilation(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI does not accept the interpreted package."""
    built(package, problem=FAILED)
    monkeypatch.setenv("BRAIDMQ_STRICT_BUILD", "1")

    assert not setup.is_current()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setup says which compiler it looked for."""
    monkeypatch.delenv("BRAIDMQ_PURE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler -m64")

    assert "there is no C compiler here (no-such-compiler)" == setup.why_interpreted()
