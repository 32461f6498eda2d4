"""When setup.py compiles again. The compiled test runs prove that it compiles at all."""

import fcntl
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
    monkeypatch.setattr(setup, "STAGED", tmp_path / "staged")
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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """An entry for each compilation that was started in the background."""
    found: list[bool] = []
    monkeypatch.setattr(setup, "_start_staging", lambda: found.append(True))
    return found


def staged(fingerprint: str, problem: str = "") -> None:
    """Leave the files that a compilation in the background leaves."""
    place = setup.STAGED / "braidmq" / "broker" / "retry.so"
    place.parent.mkdir(parents=True)
    if not problem:
        place.write_text("new")
    state = {
        "fingerprint": fingerprint,
        "modules": ["braidmq.broker.retry"],
        "problem": problem,
    }
    (setup.STAGED / setup.STAGED_STATE).write_text(json.dumps(state))


def test_a_first_start_does_not_wait_for_the_compiler(
    package: Path, started: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """It takes minutes; libraries of other sources must not be used meanwhile."""
    (package / "broker" / "retry.so").touch()
    setup.refresh(later=True)

    assert [True] == started
    assert not (package / "broker" / "retry.so").exists()
    assert "run interpreted this time: they are being compiled" in capsys.readouterr().out
    assert "" == setup.why_stale()
    assert not setup.is_current()


def test_the_next_start_takes_over_what_was_compiled(
    package: Path, started: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever command is the next."""
    staged(setup.fingerprint())
    setup.refresh(later=True)

    assert "new" == (package / "broker" / "retry.so").read_text()
    assert "braidmq: 1 hot modules are compiled\n" == capsys.readouterr().out
    assert setup.is_current()
    assert ([], False) == (started, setup.STAGED.exists())


def test_what_was_compiled_of_other_sources_is_not_taken_over(
    package: Path, started: list[bool]
) -> None:
    """An edit during the compilation makes it stale."""
    staged("of other sources")
    setup.refresh(later=True)

    assert [True] == started
    assert not (package / "broker" / "retry.so").exists()


def test_a_compilation_that_failed_in_the_background_is_not_repeated(
    package: Path, started: list[bool]
) -> None:
    """Otherwise every start would run the failing compiler again."""
    staged(setup.fingerprint(), problem=FAILED)
    setup.refresh(later=True)
    setup.refresh(later=True)

    assert [] == started
    assert FAILED == setup.read_state().problem


def test_a_second_start_does_not_wait_for_a_compiler_that_runs(
    package: Path, started: list[bool]
) -> None:
    """The lock is held by the compilation; only `make setup` waits for it."""
    with setup.lock_file() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        setup.refresh(later=True)

    assert [] == started
