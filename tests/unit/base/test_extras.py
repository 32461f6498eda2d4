"""Extras: what each brings, and the one line for what is missing."""

import subprocess
import sys
from typing import Final

import pytest

from braidmq.base.errors import EXIT_USAGE, BraidError
from braidmq.base.extras import PACKAGES, MissingExtraError, extra_of, how_to_get, needing

WITHOUT: Final = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{code}
"""
COMMANDS: Final = {
    "serve --dev": ("server", "braidmq serve needs structlog"),
    "bench": ("server", "this command needs uvloop"),
    "discover": ("server", "braidmq discover needs ifaddr"),
    "keygen": ("qumbed", "this command needs nacl"),
    "pipeline report --path data --out out": ("spark", "this command needs pyspark"),
}
USES: Final = {
    "import braidmq.columnar": ("columnar", "braidmq.columnar needs "),
    "import braidmq.spark as s; s.session": ("spark", "braidmq.spark needs "),
    "import braidmq.testing": ("server", "braidmq.testing needs "),
    "import braidmq; braidmq.connect('qumbed://h')": ("qumbed", "qumbed:// needs "),
}


def run_without_extras(code: str) -> "subprocess.CompletedProcess[str]":
    """Run *code* in a process that has the packages of no extra."""
    packages = set().union(*PACKAGES.values()) - {
        "pydantic",
        "pydantic_core",
    }  # typer's as well
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(packages=packages, code=code)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_without_its_extra_is_one_line_that_says_what_to_type(line: str) -> None:
    """In a clone and where a wheel is installed."""
    extra, begin = COMMANDS[line]
    code = f"from braidmq.cli.main import main\nsys.exit(main({line.split()}))"
    run = run_without_extras(code)

    assert (EXIT_USAGE, "") == (run.returncode, run.stdout)
    assert f"error: {begin}: {how_to_get(extra)}\n" == run.stderr


@pytest.mark.parametrize("code", USES)
def test_a_part_of_the_library_without_its_extra_says_the_same(code: str) -> None:
    """As an error of ours that is an ImportError as well, for those who try."""
    extra, begin = USES[code]
    tried = f"try:\n    {code}\nexcept ImportError as error:\n    print(error)"
    run = run_without_extras(tried)

    assert (0, "") == (run.returncode, run.stderr)
    assert run.stdout.startswith(begin)
    assert run.stdout.endswith(f": {how_to_get(extra)}\n")


def test_the_client_needs_no_extra() -> None:
    """For Blip and Vibe, and for every command that talks to a broker."""
    urls = ["blip://k@127.0.0.1:1", "vibe://k@127.0.0.1:1"]
    code = f"import braidmq, braidmq.sync\nfor url in {urls}: print(braidmq.connect(url))"
    run = run_without_extras(code)

    assert (0, "", 2) == (run.returncode, run.stderr, run.stdout.count("Connecting"))


def test_the_texts_name_both_commands() -> None:
    """The same for each extra, in one place."""
    assert "make run, or pip install 'braidmq[server]'" == how_to_get("server")
    assert "make demo, or pip install 'braidmq[columnar]'" == how_to_get("columnar")
    assert ("server", "columnar", None, None) == tuple(
        map(extra_of, ("uvicorn.config", "pyarrow", "json", None))
    )


def test_only_packages_of_extras_are_reported_as_such() -> None:
    """Another missing module is a mistake that must show its name."""
    with pytest.raises(ModuleNotFoundError, match="no such"), needing("server", "it"):
        raise ModuleNotFoundError("no such", name="braidmq.nowhere")
    with pytest.raises(MissingExtraError) as caught, needing("qumbed", "it"):
        raise ModuleNotFoundError(name="nacl")

    assert isinstance(caught.value, BraidError)
    assert f"it needs nacl: {how_to_get('qumbed')}" == str(caught.value)
    assert ("nacl", "qumbed") == (caught.value.name, caught.value.extra)
