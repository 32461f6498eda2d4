"""Publishers and consumers that keep the broker busy while a test watches the page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.browser.stage import PATIENCE_MS, Stage


@contextmanager
def publishing(stage: Stage, topic: str) -> Iterator[None]:
    """Publish over Blip continuously while the block runs."""
    enough = threading.Event()

    def publish() -> None:
        with stage.client("blip") as client:
            while not enough.is_set():
                client.publish(topic, b'{"meter": 1}')

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


@contextmanager
def consuming(stage: Stage, topic: str) -> Iterator[None]:
    """Take messages over Blip while the block runs, and acknowledge all but the first."""
    enough = threading.Event()
    subscribed = threading.Event()

    def consume() -> None:
        with stage.client("blip") as client, client.subscribe(topic) as messages:
            subscribed.set()
            first, *others = messages.fetch(timeout=PATIENCE_MS / 1000)
            while not enough.is_set():
                for message in others:
                    message.ack()
                others = messages.fetch(timeout=1)
            first.ack()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        assert subscribed.wait(PATIENCE_MS / 1000)
        yield
    finally:
        enough.set()
        thread.join()
