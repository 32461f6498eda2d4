"""A broker imports what it uses when it uses it: imports are most of its start."""

import json
import subprocess
import sys
from typing import Final

import pytest

LATER: Final = {
    "aioquic": "where Qumbed is on",
    "argon2": "with the first password",
    "OpenSSL": "where Qumbed is on",
    "prometheus_client": "at the first scrape",
    "pyarrow": "where Flight is on",
    "uvicorn": "where HTTP is on",
    "yaml": "where the configuration is YAML",
    "zeroconf": "with --mdns",
}
PACKAGES: Final = """
import json, sys
{code}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def packages_after(code: str) -> set[str]:
    """Return the packages that a new process has imported after running *code*."""
    found = subprocess.check_output(
        [sys.executable, "-c", PACKAGES.format(code=code)], text=True
    )
    return set(json.loads(found.splitlines()[-1]))


def test_a_daemon_imports_only_what_every_broker_uses() -> None:
    """Listeners that are off, passwords and scrapes cost nothing at the start."""
    found = packages_after("import braidmq.server.config.loading, braidmq.daemon.process")

    assert {"pydantic", "structlog", "uvloop"} <= found
    assert {} == {name: when for name, when in LATER.items() if name in found}


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["--version"]])
def test_help_imports_neither_the_broker_nor_rich(arguments: list[str]) -> None:
    """Drawing boxes took a third of its time."""
    found = packages_after(f"from braidmq.cli.main import main\nmain({arguments})")

    assert set() == found & {"rich", "structlog", "uvloop", *LATER}


def test_serve_imports_structlog_without_rich() -> None:
    """And rich itself can be imported afterwards, for the progress bar."""
    found = packages_after("from braidmq.cli.broker import serve\nserve._import_structlog()")

    assert ("structlog" in found, "rich" in found) == (True, False)
    then = "from braidmq.cli.broker import serve\nserve._import_structlog()\nimport rich.table"
    assert "rich" in packages_after(then)


def test_the_library_imports_no_dependency_before_it_connects() -> None:
    """Spark starts many short workers that only pass through."""
    before, after = packages_after("pass"), packages_after("import braidmq")

    assert {"braidmq"} == after - before - set(sys.stdlib_module_names)
