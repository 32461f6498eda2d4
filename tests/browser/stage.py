"""What browser tests stand on: a broker as a process, and a tab that notices everything.

The broker is `braidmq serve` itself. Its helpers are asynchronous and Playwright's blocking
API keeps a loop of its own in the tests' thread, so they run in a thread beside it.
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

if TYPE_CHECKING:  # a machine without Playwright skips these tests, and must get that far
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, Response

PATIENCE_MS: Final = 20_000
"""How long a test waits for what must be seen; a page that works never makes it wait."""

SCREENSHOTS: Final = Path(__file__).resolve().parents[2] / "build" / "screenshots"

# A refusal of the API is an answer that the page shows; the browser writes it down besides.
_REFUSAL: Final = re.compile(r"Failed to load resource: .* status of [45]\d\d")

_WATCH_POLICY: Final = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} ${event.blockedURI}`));
"""

_UNTIL: Final = """() => new Promise((resolve, reject) => {
  const end = Date.now() + %d;
  const look = () => {
    if (%s) resolve();
    else if (Date.now() > end) reject(new Error("it never became true"));
    else setTimeout(look, 25);
  };
  look();
})"""


def skip_without_browser() -> None:
    """Skip the module that is collected when there is no browser, all of them in one line.

    Where CI is set nothing is skipped, and each test fails for want of it.
    """
    if (reason := _lacking()) and not os.environ.get("CI"):
        pytest.skip(f"{reason}: what needs one is not tested")


def _lacking() -> str:
    if shutil.which("chromium") is None:
        return "no chromium on this machine (apt-get install chromium)"
    if importlib.util.find_spec("playwright") is None:
        return "no playwright in this environment"
    return ""


@contextmanager
def launched() -> Iterator["Browser"]:
    """Run a headless Chromium, Debian's."""
    if reason := _lacking():
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
    """A broker that runs, and what tests do to it without the page."""

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

    def api(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - whatever JSON says
        """Ask the HTTP API; what it refuses raises."""
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
        """Declare a queue and send it so much that some of it dies."""
        rules = {"maxQueueSize": waiting, "overflowStrategy": "RedirectToDlq"}
        self.api("POST", "/api/queues", {"name": queue, **rules})
        for n in range(waiting + dead):
            self.post(queue, {"n": n})

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"/api/queues/{quote(name, safe='')}")
        return found

    def stop(self) -> None:
        """End the broker, politely."""
        self._loop.run(self._broker.end(signal.SIGTERM))

    def kill(self) -> None:
        """End the broker at once, unless it has ended by itself."""
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
    """One page of a browser that writes down whatever should not happen in it."""

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
            self.complaints.append(f"asked elsewhere: {request.url}")

    def _response(self, response: "Response") -> None:
        self.answers.append(response)
        if "/static/" in response.url and response.status >= 400:
            self.complaints.append(f"no file: {response.url}")

    def open(self, route: str = "#/overview") -> None:
        """Go to a page of the dashboard, and wait until it is there."""
        # With the page open already this only changes the part behind the #.
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
        """Wait until *text* can be read somewhere."""
        self.page.get_by_text(text).first.wait_for()

    def text(self, selector: str) -> str:
        """Return what can be read in the first match of *selector*."""
        return self.page.locator(selector).first.inner_text()

    def number(self, name: str) -> float:
        """Return one of the overview's numbers."""
        shown = self.text(f'[data-number="{name}"]').split("\n")[0]
        return float(re.sub(r"[^\d.]", "", shown) or 0)

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true in the page."""
        # Playwright's own way would eval the text in the page, which the policy forbids.
        self.page.evaluate(_UNTIL % (PATIENCE_MS, expression))

    def button(self, name: str) -> None:
        """Press a button by its name."""
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def width(self) -> int:
        """Return how wide the document is, the viewport's width unless it overflows."""
        return int(self.page.evaluate("document.documentElement.scrollWidth"))
