"""Shared by every test run: hypothesis profiles, and a guard against stale compiled modules.

Tests are found by path (`--import-mode=importlib`), so no directory here needs an __init__.py,
and two rooms may have test modules of the same name. Code that tests share is imported by its
path from the root: `from tests.integration.something import ...`.
"""

import os
import signal
from types import FrameType
from typing import Final

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

import setup
from braidmq.base import build
from tests import class_archive

TOGETHER: Final = {
    "tests/integration/spark/": "spark",
    "tests/unit/spark/pipelines/replay/test_rows.py": "spark",
    "tests/unit/spark/pipelines/report/test_counts.py": "spark",
    "tests/browser/": "browser",
    "tests/tidy/test_tidy.py": "tidy",
    "tests/packaging/test_wheel.py": "wheel",
    "tests/docs/test_site.py": "site",
    "tests/docs/test_container.py": "container",
    "tests/docs/test_machine.py": "machine",
    "tests/chaos/test_power_cut.py": "machine",
}
"""Groups of tests that share something slow to start, by the start of their ids.

The group "machine" must not run in parallel for another reason: a container that starts holds
this machine's mounts, so that a file system whose power was cut would stay mounted.
"""

SHARED_BY_FILE: Final = ("tests/integration/cli/",)
"""Folders where the tests of a file share a broker, which takes seconds to start."""

# ci: the same examples every time, because a red build must be about the change at hand.
# quick: a few of them, for an interpreted run of tests that have already run compiled.
# dev: new examples every time, for finding new failures.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("quick", derandomize=True, deadline=None, max_examples=20)
hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("BRAIDMQ_HYPOTHESIS", "ci"))

class_archive.use()


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test compiled modules that do not match the sources."""
    # A shell starts background jobs with Ctrl-C ignored, and nohup with SIGHUP ignored. Our
    # children would inherit that; a signal with a handler here is reset to its default in them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stay)
    if hasattr(config, "workerinput"):
        return  # the process that started this worker has checked already
    if os.environ.get("BRAIDMQ_PURE") == "1":
        if build.compiled_modules():
            pytest.exit("BRAIDMQ_PURE=1, but compiled modules would run: `make setup`", 3)
    elif reason := setup.why_stale():
        pytest.exit(f"{reason}: `make setup`, or BRAIDMQ_PURE=1 `make setup` while editing", 3)
    elif config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        class_archive.begin()  # only for the whole suite: writing it takes half a minute


def _stay(number: int, frame: FrameType | None) -> None:
    """Survive a hangup, as `nohup` demands."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the campaigns to `make chaos`."""
    if os.environ.get("BRAIDMQ_CAMPAIGNS") == "all":
        return
    campaigns = [item for item in items if item.get_closest_marker("campaign")]
    config.hook.pytest_deselected(items=campaigns)
    items[:] = [item for item in items if not item.get_closest_marker("campaign")]


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Give each test to the next free process, and a group of tests to one process."""

    def _split_scope(self, nodeid: str) -> str:
        shared = (group for start, group in TOGETHER.items() if nodeid.startswith(start))
        if nodeid.startswith(SHARED_BY_FILE):
            return nodeid.partition("::")[0]
        return next(shared, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    """Distribute by name: not every version of pytest passes group marks on to xdist."""
    return Scheduling(config, log)


def pytest_report_header() -> str:
    """Say how many hot modules are compiled."""
    compiled = len(build.compiled_modules())
    return f"braidmq: {compiled} of {len(build.hot_modules())} hot modules compiled"
