"""One browser and one broker for each module of browser tests.

Not for longer: Playwright's event loop occupies the thread, which asynchronous tests need.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.stage import Stage, Tab, launched, skip_without_browser, staged

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class BrowserModule(pytest.Module):
    """A module of this directory; without a browser it is skipped before it is imported."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        skip_without_browser()
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Make every module in this directory require a browser."""
    module: BrowserModule = BrowserModule.from_parent(parent, path=module_path)
    return module


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    with launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def stage(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    # Small segments, so that some are sealed soon.
    config = "[wal]\nsegment_bytes = 65536\n"
    with staged(tmp_path_factory.mktemp("broker"), config=config) as stage:
        yield stage


@pytest.fixture
def new_tab(chromium: "Browser") -> Iterator[Callable[..., Tab]]:
    """A function that opens tabs; at the end no tab may have reported a problem."""
    tabs: list[Tab] = []

    def opened(origin: str, **options: Any) -> Tab:  # noqa: ANN401 - passed on to Playwright
        context = chromium.new_context(**{"locale": "en-GB", "timezone_id": "UTC", **options})
        tabs.append(Tab(context.new_page(), origin))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.page.context.close()
    assert [] == [complaint for tab in tabs for complaint in tab.complaints]


@pytest.fixture(scope="module")
def shared_tab(chromium: "Browser", stage: Stage) -> Iterator[Tab]:
    options: Any = {"viewport": {"width": 1280, "height": 900}}
    context = chromium.new_context(locale="en-GB", timezone_id="UTC", **options)
    yield Tab(context.new_page(), stage.origin)
    context.close()


@pytest.fixture
def tab(shared_tab: Tab) -> Iterator[Tab]:
    """The module's tab, which stays open from test to test, like a user's."""
    yield shared_tab
    complaints, shared_tab.complaints = shared_tab.complaints, []
    shared_tab.page.evaluate("() => document.querySelector('dialog')?.close()")
    assert [] == complaints
