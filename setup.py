"""Builds the package: with mypyc's compiled hot modules where a C compiler is, else without.

    pip install .             the package; compiled when it can be, else interpreted, loudly
    python setup.py refresh   what `make setup` calls: compile beside the sources, only when
                              something that the compiler has seen is no longer the same
    ... refresh --later       what `make run` calls: the same without waiting; compile in the
                              background, into build/staged, for the next refresh to take over

    BRAIDMQ_PURE=1            compile nothing; the program runs interpreted
    BRAIDMQ_STRICT_BUILD=1    a compiler that is there and fails is an error (CI sets this)

What is not here: names, dependencies and package data, which are in pyproject.toml, and the
list of hot modules, which is in src/braidmq/base/build.py.
"""

import ast
import fcntl
import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT: Final = Path(__file__).resolve().parent
SOURCES: Final = ROOT / "src"
PACKAGE: Final = SOURCES / "braidmq"
STATE_FILE: Final = ROOT / "build" / "compiled.json"
STAGED: Final = ROOT / "build" / "staged"
STAGED_STATE: Final = "compiled.json"
TOOLS: Final = ROOT / "build" / "tools"
BUILD_LOG: Final = ROOT / "build" / "compile.log"
COMPILED_SUFFIXES: Final = (".so", ".pyd")
COMMANDS_THAT_COMPILE: Final = frozenset(
    {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
)

# The compiler judges the hot modules only, by its own rules: `make check` judges the tree by
# ours, with stubs and plugins that an isolated build does not have.
MYPY_FLAGS: Final = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")

_FAILED: Final = "the compiler failed"
_LATER: Final = f"they are being compiled for the next start; see build/{BUILD_LOG.name}"


@dataclass(frozen=True)
class State:
    """What the last build left beside the sources."""

    fingerprint: str
    modules: list[str]
    problem: str

    def line(self) -> str:
        """Return one line for a person: what runs, and why when it is not the fast one."""
        if not self.problem:
            return f"braidmq: {len(self.modules)} hot modules are compiled"
        if self.problem == _LATER:
            return f"braidmq: the hot modules run interpreted this time: {_LATER}"
        return f"braidmq: WARNING: the hot modules run INTERPRETED, slower: {self.problem}"


def hot_sources() -> list[Path]:
    """Return the source files of the hot modules, sorted."""
    is_hot: Callable[[str], bool] = runpy.run_path(str(PACKAGE / "base" / "build.py"))["is_hot"]
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.stem != "__init__" and is_hot(_module_name(path))
    ]


def fingerprint() -> str:
    """Return a digest of everything that the compiled modules were made from.

    That is more than their own sources: constants of the modules they import are compiled in.
    """
    digest = hashlib.sha256()
    tools = (sys.version, str(sysconfig.get_config_var("EXT_SUFFIX")), mypy_version())
    digest.update(repr(tools).encode())
    digest.update(Path(__file__).read_bytes())
    for path in _with_imports(hot_sources()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(SOURCES)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def mypy_version() -> str:
    """Return the locked version: where only a broker is installed, there is no compiler."""
    lock = ROOT / "requirements.lock"
    found = re.search(r"(?m)^mypy==(\S+)", lock.read_text("utf-8")) if lock.exists() else None
    return found[1] if found else version("mypy")


def why_stale() -> str:
    """Return why the compiled modules beside the sources must not be used, or nothing."""
    state = read_state()
    if bool(_compiled_files()) == bool(state.problem):
        return "compiled modules have come or gone since the last build"
    if not state.problem and state.fingerprint != fingerprint():
        return "sources have changed since they were compiled"
    return ""


def why_interpreted() -> str:
    """Return why nothing should be compiled here, or nothing."""
    if os.environ.get("BRAIDMQ_PURE") == "1":
        return "BRAIDMQ_PURE=1"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler here ({compiler})"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "the C headers of this Python are not installed"
    return ""


def is_current() -> bool:
    """Tell whether a build now would leave what the last one left."""
    state = read_state()
    if why_stale() or state.fingerprint != fingerprint():
        return False
    if os.environ.get("BRAIDMQ_STRICT_BUILD") == "1" and not why_interpreted():
        return not state.problem
    gave_up = state.problem.startswith(_FAILED)
    return state.problem == why_interpreted() or (gave_up and not why_interpreted())


def extensions() -> list[object]:
    """Translate the hot modules to C; return none, and record why, when that cannot be."""
    remove_compiled()
    _begin()
    sources = [str(path.relative_to(ROOT)) for path in hot_sources()]
    reason = why_interpreted() or ("" if sources else "there are no hot modules")
    if reason:
        _end(reason)
        return []
    from mypyc.build import mypycify

    try:
        return list(mypycify([*MYPY_FLAGS, *sources], opt_level="3", group_name="braidmq"))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - mypyc leaves by sys.exit when types are wrong
        _give_up("mypyc", error)
        return []


class BuildHot(build_ext):
    """Compile all hot modules or none: half of them would not find the other half."""

    def run(self) -> None:
        """Compile, and fall back to the interpreted program when the compiler fails."""
        if not self.extensions:
            return
        self.force = True  # the fingerprint has decided already, and better than file times
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 - any failure here still leaves a whole program
            _give_up("C", error)
            self.extensions = []
            self.distribution.ext_modules = []
        else:
            _end("")

    def get_outputs(self) -> list[str]:
        """Name what was built, which is nothing after a failure."""
        return super().get_outputs() if self.extensions else []


def remove_compiled() -> None:
    """Give the interpreted program back."""
    for path in _compiled_files():
        path.unlink()


def refresh(*, later: bool = False) -> None:
    """Compile beside the sources when needed; say what runs.

    *later*: do not wait for the compiler. The program runs interpreted meanwhile.
    """
    with lock_file() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if later:
                print(read_state().line(), flush=True)
                return
            print("braidmq: waiting for the compiler in the background", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        if not is_current() and not _take_over():
            if later and not why_interpreted():
                remove_compiled()
                _write_state(State(fingerprint(), modules=[], problem=_LATER))
                _start_staging()
            else:
                print("braidmq: building the hot modules", flush=True)
                sys.argv[1:] = ["--quiet", "build_ext", "--inplace"]
                build()
        print(read_state().line(), flush=True)


def stage() -> None:
    """Compile into a directory of its own, beside a program that may be running."""
    with lock_file() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        made = fingerprint()  # taken first: an edit during the build makes it stale
        if _staged().fingerprint == made:
            return
        shutil.rmtree(STAGED, ignore_errors=True)
        STAGED.mkdir(parents=True)
        problem = f"{_FAILED} (in the background, on these sources; see build/{BUILD_LOG.name})"
        try:
            _compile_into(STAGED)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure leaves a whole program
            print(f"{type(error).__name__}: {error}", flush=True)
        else:
            problem = ""
        modules = [] if problem else [_module_name(path) for path in hot_sources()]
        # Last: without it nothing here counts.
        (STAGED / STAGED_STATE).write_text(json.dumps(asdict(State(made, modules, problem))))


def _compile_into(place: Path) -> None:
    from mypyc.build import mypycify

    sources = [str(path.relative_to(ROOT)) for path in hot_sources()]
    sys.argv[1:] = [
        "--quiet",
        "build_ext",
        f"--build-lib={place}",
        f"--build-temp={place}/temp",
    ]
    made: list[Any] = mypycify(
        [*MYPY_FLAGS, *sources],
        opt_level="3",
        group_name="braidmq",
        target_dir=str(place / "temp"),
    )
    setup(ext_modules=made)
    shutil.rmtree(place / "temp")


def _take_over() -> bool:
    """Use what was compiled in the background, if it is of these sources."""
    state = _staged()
    if state.fingerprint != fingerprint() or why_interpreted():
        return False
    if state.problem and os.environ.get("BRAIDMQ_STRICT_BUILD") == "1":
        return False
    remove_compiled()
    for path in STAGED.rglob("*"):
        if path.suffix in COMPILED_SUFFIXES:
            shutil.copy(path, SOURCES / path.relative_to(STAGED))
    _write_state(state)
    shutil.rmtree(STAGED)
    return True


def _start_staging() -> None:
    """Run `stage` in the background: with its tools, at the lowest priority, and quietly."""
    script = f"nice -n 19 {shlex.quote(sys.executable)} setup.py stage"
    if find_spec("mypyc") is None:
        tools = shlex.quote(str(TOOLS))
        uv = shlex.quote(str(Path(sys.executable).with_name("uv")))
        script = (
            f"rm -rf {tools}; {uv} pip install --quiet --python {shlex.quote(sys.executable)} "
            f"--target {tools} --require-hashes -r requirements-build.lock "
            f"&& PYTHONPATH={tools} {script}; rm -rf {tools}"
        )
    with BUILD_LOG.open("w") as log:
        # In a session of its own, so that Ctrl-C, which ends the broker, does not end it.
        subprocess.Popen(  # noqa: S603 - our own words, quoted
            ["/bin/sh", "-c", script],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def lock_file() -> IO[str]:
    """Return the file that a build locks: two at once would link each other's halves."""
    STATE_FILE.parent.mkdir(exist_ok=True)
    return STATE_FILE.with_suffix(".lock").open("w")


def build() -> None:
    """Hand over to setuptools."""
    settings: dict[str, Any] = {"cmdclass": {"build_ext": BuildHot}}
    if COMMANDS_THAT_COMPILE.intersection(sys.argv):
        settings["ext_modules"] = extensions()
    setup(**settings)


def _give_up(compiler: str, error: BaseException) -> None:
    remove_compiled()
    print(f"braidmq: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    problem = f"{_FAILED} ({compiler}, on these sources)"
    _end(problem)
    if os.environ.get("BRAIDMQ_STRICT_BUILD") == "1":
        raise SystemExit(f"braidmq: error: {problem}")


def _compiled_files() -> list[Path]:
    return [path for path in SOURCES.rglob("*") if path.suffix in COMPILED_SUFFIXES]


def read_state() -> State:
    """Return what the last build has left; nothing compiled when there was none."""
    return _state_in(STATE_FILE)


def _staged() -> State:
    return _state_in(STAGED / STAGED_STATE)


def _state_in(path: Path) -> State:
    try:
        return State(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return State(fingerprint="", modules=[], problem="they were never built")


def _begin() -> None:
    # The fingerprint is taken first: an edit during the build makes it stale.
    STATE_FILE.parent.mkdir(exist_ok=True)
    _write_state(State(fingerprint(), modules=[], problem="the last build did not end"))


def _end(problem: str) -> None:
    modules = [] if problem else [_module_name(path) for path in hot_sources()]
    _write_state(replace(read_state(), modules=modules, problem=problem))


def _write_state(state: State) -> None:
    STATE_FILE.write_text(json.dumps(asdict(state), indent=2))


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


def _with_imports(paths: list[Path]) -> list[Path]:
    found: set[Path] = set()
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imported_files(path))
    return sorted(found)


def _imported_files(path: Path) -> Iterator[Path]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return  # it is being edited; the compiler will report it
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    for name in names:
        base = SOURCES.joinpath(*name.split("."))
        yield from (
            file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()
        )


if __name__ == "__main__":
    os.chdir(ROOT)
    if sys.argv[1:2] == ["refresh"]:
        refresh(later="--later" in sys.argv)
    elif sys.argv[1:] == ["stage"]:
        stage()
    else:
        build()
