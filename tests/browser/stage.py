"""Helpers of the browser tests: a broker as a process, and a tab that records problems.

The broker is `braidmq serve` itself. Its helpers are asynchronous, and Playwright's blocking
API occupies the tests' thread with its own event loop, so they run in another thread.
"""

import importlib.util
import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import pytest

import braidmq.sync
from braidmq.client.sync import LoopThread
from tests.integration.served import Served, served

if TYPE_CHECKING:  # without Playwright this module must still be importable, to skip
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, Response

PATIENCE_MS: Final = 20_000
"""Timeout of every wait; a correct page never makes a test wait this long."""

SCREENSHOTS: Final = Path(__file__).resolve().parents[2] / "build" / "screenshots"

# The page shows API errors itself; the browser also logs them to the console.
_REFUSAL: Final = re.compile(r"Failed to load resource: .* status of [45]\d\d")

_WATCH_POLICY: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""

_UNTIL: Final = """() => new Promise((resolve, reject) => {
  const end = Date.now() + %d;
  const look = () => {
    if (%s) resolve();
    else if (Date.now() > end) reject(new Error("timed out"));
    else setTimeout(look, 25);
  };
  look();
})"""


def skip_without_browser() -> None:
    """Skip the module being collected if there is no browser, with the same line for all.

    With CI set nothing is skipped, and each test fails instead.
    """
    if (reason := _missing()) and not os.environ.get("CI"):
        pytest.skip(f"{reason}: what needs one is not tested")


def _missing() -> str:
    if shutil.which("chromium") is None:
        return "no chromium on this machine (apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "no playwright in this environment"
    return ""


@contextmanager
def launched() -> Iterator["Browser"]:
    """Run the system's Chromium, headless."""
    if reason := _missing():
        pytest.fail(f"{reason}: the browser tests must run", pytrace=False)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - it may be missing

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"),
            # Chromium's sandbox refuses to run as root.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield browser
        browser.close()


class Stage:
    """A running broker, and what tests do to it without the page."""

    def __init__(self, loop: LoopThread, broker: Served, key: str) -> None:
        self._loop = loop
        self._broker = broker
        self._key = key
        self.facts = broker.facts()

    @property
    def origin(self) -> str:
        return f"http://{self.facts['http']}"

    def client(self, strand: str = "blip") -> braidmq.sync.Client:
        """Return a client that is not connected yet."""
        pin = f"?fingerprint={self.facts['qumbed_fingerprint']}" if strand == "qumbed" else ""
        return braidmq.sync.connect(f"{strand}://{self._key}@{self.facts[strand]}{pin}")

    def api(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - any JSON
        """Call the HTTP API; a refusal raises."""
        request = urllib.request.Request(  # noqa: S310 - our own broker, on loopback
            self.origin + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - as above
            return json.load(response)

    def post(self, topic: str, payload: object, **more: object) -> int:
        """Publish over HTTP; return the offset."""
        path = f"/api/topics/{quote(topic, safe='')}/messages"
        return int(self.api("POST", path, {"payload": payload, **more})["offset"])

    def overfill(self, queue: str, waiting: int, dead: int) -> None:
        """Declare a queue and publish so many messages that *dead* become dead letters."""
        rules = {"maxQueueSize": waiting, "overflowStrategy": "RedirectToDlq"}
        self.api("POST", "/api/queues", {"name": queue, **rules})
        for n in range(waiting + dead):
            self.post(queue, {"n": n})

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"/api/queues/{quote(name, safe='')}")
        return found

    def stop(self) -> None:
        """Stop the broker with SIGTERM."""
        self._loop.run(self._broker.end(signal.SIGTERM))

    def kill(self) -> None:
        """Kill the broker, unless it has exited by itself."""
        with suppress(ProcessLookupError):
            self._broker.tell(signal.SIGKILL)
        self._loop.run(self._broker.ended())


@contextmanager
def staged(
    directory: Path, *flags: str, config: str = "", dev: bool = True, key: str = "dev-key"
) -> Iterator[Stage]:
    """Run a broker in *directory* until the block ends."""
    loop = LoopThread()
    stack = AsyncExitStack()
    try:
        starting = served(directory, *flags, config=config, dev=dev)
        broker = loop.run(stack.enter_async_context(starting))
        loop.run(broker.ready())
        yield Stage(loop, broker, key)
    finally:
        loop.run(stack.aclose())
        loop.stop()


class Tab:
    """One page of a browser that records whatever should not happen in it."""

    def __init__(self, page: "Page", origin: str) -> None:
        self.page = page
        self.origin = origin
        self.complaints: list[str] = []
        self.answers: list[Response] = []
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(_WATCH_POLICY)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"threw: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)
        page.on("response", self._response)

    def _console(self, message: "ConsoleMessage") -> None:
        if message.type in {"error", "warning"} and not _REFUSAL.match(message.text):
            self.complaints.append(f"console: {message.text}")

    def _dialog(self, dialog: "Dialog") -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: "Request") -> None:
        if urlsplit(request.url).netloc != urlsplit(self.origin).netloc:
            self.complaints.append(f"request to another host: {request.url}")

    def _response(self, response: "Response") -> None:
        self.answers.append(response)
        if "/static/" in response.url and response.status >= 400:
            self.complaints.append(f"missing file: {response.url}")

    def open(self, route: str = "#/overview") -> None:
        """Go to a view of the dashboard, and wait until it is shown."""
        # If the page is open already, this only changes the part after the #.
        address = f"{self.origin}/{route}"
        if self.page.url == address:
            self.page.reload()
        else:
            if self.page.url.startswith(self.origin):
                self.page.evaluate(
                    "() => { document.getElementById('main').dataset.view = ''; }"
                )
            self.page.goto(address)
        self.page.locator('main[data-view]:not([data-view=""]) h1').wait_for()

    def goto_topic(self, topic: str, query: str = "") -> None:
        self.open(f"#/topics/{quote(topic, safe='')}{query}")

    def sees(self, text: str) -> None:
        """Wait until *text* is visible somewhere."""
        self.page.get_by_text(text).first.wait_for()

    def text(self, selector: str) -> str:
        """Return the visible text of the first match of *selector*."""
        return self.page.locator(selector).first.inner_text()

    def number(self, name: str) -> float:
        """Return one of the overview's numbers."""
        shown = self.text(f'[data-number="{name}"]').split("\n")[0]
        return float(re.sub(r"[^\d.]", "", shown) or 0)

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        # Playwright's own wait would eval the text in the page, which the policy forbids.
        self.page.evaluate(_UNTIL % (PATIENCE_MS, expression))

    def button(self, name: str) -> None:
        """Click a button by its name."""
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def width(self) -> int:
        """Return the width of the document, which is the viewport's unless it overflows."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))
