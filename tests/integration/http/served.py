"""A real broker on its own thread, for blocking tests that call it over HTTP."""

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from braidmq.testing import RunningBroker, running_broker

PATIENCE_S = 20.0


class Answer:
    """A response, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.data = response.read()

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        return json.loads(self.data)


class Served:
    """A broker, its address, and a way to send it requests."""

    def __init__(self, broker: RunningBroker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self._loop = loop
        self.host, self.port = broker.address("http")
        self.url = f"http://{self.host}:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        key: str | None = "dev-key",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        given = {} if key is None else {"Authorization": f"Bearer {key}"}
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body=data, headers={**given, **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def publish(self, topic: str, payload: object, **given: object) -> int | None:
        path = f"/api/topics/{quote(topic, safe='')}/messages"
        answer = self.ask("POST", path, {"payload": payload, **given})
        assert 201 == answer.status, answer.data
        offset: int | None = answer.json()["offset"]
        return offset

    def run(self, work: Any) -> Any:  # noqa: ANN401 - a coroutine of any kind
        """Run a coroutine on the broker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


@contextmanager
def served(config: dict[str, object] | None = None) -> Iterator[Served]:
    """Run a broker until the block ends."""
    ready = threading.Event()
    ending = threading.Event()
    found: list[Served] = []

    async def serve() -> None:
        async with running_broker(config=config) as broker:
            found.append(Served(broker, asyncio.get_running_loop()))
            ready.set()
            await asyncio.to_thread(ending.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="broker")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0]
    finally:
        ending.set()
        thread.join()
