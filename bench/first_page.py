"""Load time of the dashboard: the first page in a headless Chromium, with an empty cache.

Both moments are by the browser's own clock, from the beginning of the navigation: when it has
painted something, and when a chart has the first number from the stream.
"""

import importlib.util
import os
import shutil
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from bench import report
from bench.servers import Broker
from bench.streams import BrokenRunError

if TYPE_CHECKING:  # benchmarks run without it, and leave these rows out
    from playwright.sync_api import Browser

PROGRAM: Final = "chromium"
DRIVER: Final = "playwright"
PAINTED: Final = "first page, painted"
LIVE: Final = "first page, with a live number"
BAR_S: Final = 1.0
VISITS: Final = 7
"""How often the page is opened, each time with an empty cache."""

VISIT_S_MAX: Final = 20.0

# The page's policy forbids evaluating text as code, which Playwright's own waiting does.
_MOMENTS_MS: Final = """() => new Promise((resolve, reject) => {
  const look = () => {
    const now = performance.now();
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const number = document.querySelector(".legend b")?.textContent;
    if (paint && /[0-9]/.test(number)) resolve([paint.startTime, now]);
    else if (now > %d) reject(new Error("no first number"));
    else setTimeout(look, 5);
  };
  look();
})"""


def missing() -> str:
    """Return the missing program or package, or an empty string."""
    if shutil.which(PROGRAM) is None:
        return PROGRAM
    return "" if importlib.util.find_spec(DRIVER) else DRIVER


def rows(broker: Broker) -> Iterator[report.Row]:
    """Measure and return the rows; without a browser they say so."""
    if lacked := missing():
        for name in (PAINTED, LIVE):
            yield report.absent_row(name, f"{lacked} is not installed")
        return
    painted_s, live_s = zip(*_visits(broker), strict=True)
    for name, taken_s in ((PAINTED, painted_s), (LIVE, live_s)):
        slowest = f"slowest of {VISITS}: {max(taken_s):.2f} s"
        yield report.amount_row(name, statistics.median(taken_s), "s", bar=BAR_S, note=slowest)


def _visits(broker: Broker) -> list[tuple[float, float]]:
    from playwright.sync_api import Error, sync_playwright  # noqa: PLC0415 - it may be missing

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which(PROGRAM),
            # Chromium's sandbox refuses to run as root.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        try:
            return [_visit(browser, f"http://{broker.http}/") for _ in range(VISITS)]
        except Error as error:
            raise BrokenRunError(f"the page did not load: {error}") from None
        finally:
            browser.close()


def _visit(browser: "Browser", address: str) -> tuple[float, float]:
    context = browser.new_context()  # with an empty cache of its own
    page = context.new_page()
    page.goto(address, wait_until="commit", timeout=VISIT_S_MAX * 1000)
    painted_ms, live_ms = page.evaluate(_MOMENTS_MS % (VISIT_S_MAX * 1000))
    context.close()
    return painted_ms / 1000, live_ms / 1000
