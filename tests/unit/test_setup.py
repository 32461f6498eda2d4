"""When setup.py compiles again. That it compiles at all is shown by running compiled."""

import json
import shutil
from pathlib import Path

import pytest

import setup

HOT = '"""Hot."""\n\nfrom braidmq.base.limits import MIB\n\nLIMIT = MIB\n'
FAILED = "the compiler failed (C, on these sources)"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package with one hot module, which imports one cold module and not the other."""
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
    """Leave what a build leaves."""
    state = {"fingerprint": setup.fingerprint(), "modules": [], "problem": problem}
    setup.STATE_FILE.write_text(json.dumps(state))
    if not problem:
        (package / "broker" / "retry.so").touch()


def test_what_was_just_built_is_current(package: Path) -> None:
    """A second set-up does nothing."""
    built(package)

    assert "" == setup.why_stale()
    assert setup.is_current()


@pytest.mark.parametrize("name", ["broker/retry.py", "base/limits.py"])
def test_an_edit_that_the_compiler_would_see_makes_it_stale(package: Path, name: str) -> None:
    """Hot modules count, and what they import, whose constants are compiled in."""
    built(package)
    (package / name).write_text((package / name).read_text().replace("MIB", "MIBI"))

    assert "sources have changed since they were compiled" == setup.why_stale()
    assert not setup.is_current()


def test_an_edit_that_the_compiler_does_not_see_changes_nothing(package: Path) -> None:
    """Whoever works on the command line does not wait for the compiler."""
    built(package)
    (package / "cli" / "main.py").write_text("x = 2\n")

    assert setup.is_current()


def test_a_new_hot_module_makes_it_stale(package: Path) -> None:
    """The list is made of patterns, and follows the tree."""
    built(package)
    (package / "broker" / "expiry.py").write_text("x = 1\n")

    assert not setup.is_current()


def test_a_library_that_has_gone_is_missed(package: Path) -> None:
    """All hot modules are compiled or none."""
    built(package)
    (package / "broker" / "retry.so").unlink()

    assert not setup.is_current()


def test_a_library_of_unknown_origin_is_not_trusted(package: Path) -> None:
    """Without a record of the build nobody knows which source a library came from."""
    (package / "broker" / "retry.so").touch()

    assert "compiled modules have come or gone since the last build" == setup.why_stale()


def test_an_interpreted_package_is_never_stale(package: Path) -> None:
    """Python reads the sources themselves then."""
    built(package, problem="BRAIDMQ_PURE=1")
    (package / "broker" / "retry.py").write_text("x = 1\n")

    assert "" == setup.why_stale()


def test_a_pure_package_is_compiled_when_that_is_wanted_again(package: Path) -> None:
    """BRAIDMQ_PURE holds for as long as it is set."""
    built(package, problem="BRAIDMQ_PURE=1")

    assert not setup.is_current()


def test_a_compiler_that_failed_is_asked_again_only_about_new_sources(package: Path) -> None:
    """Else every command would fail to compile first."""
    built(package, problem=FAILED)

    assert setup.is_current()


def test_a_strict_build_asks_a_failed_compiler_again(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI does not settle for the interpreted package."""
    built(package, problem=FAILED)
    monkeypatch.setenv("BRAIDMQ_STRICT_BUILD", "1")

    assert not setup.is_current()


def test_an_absent_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set-up says which compiler it has looked for."""
    monkeypatch.delenv("BRAIDMQ_PURE", raising=False)
    monkeypatch.setenv("CC", "no-such-compiler -m64")

    assert "there is no C compiler here (no-such-compiler)" == setup.why_interpreted()
