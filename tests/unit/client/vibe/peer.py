"""A Vibe server for tests: unless scripted, a small, honest, in-memory broker (dialect 1.1)."""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import Callable, Iterator

from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.messages import Body
from braidmq.wire.vibe.queue_options import QueueFacts, read_options, write_info
from tests.unit.client import peer

KEY = "dev-key"
USER, PASSWORD = "ada", "s:e@cret"

_REPLIES = {
    messages.PUBLISH: messages.PUBLISH_ACK,
    messages.SUBSCRIBE: messages.SUBSCRIBE_ACK,
    messages.UNSUBSCRIBE: messages.UNSUBSCRIBE_ACK,
}


def frame(
    kind: int, message_id: str, queue: str = "", payload: bytes = b"", **headers: str
) -> bytes:
    """Return an uncompressed frame as a broker sends it."""
    body = messages.write_body(kind, message_id, queue, payload, headers, with_errors=False)
    return frames.encode(frames.DIALECT_1_1, body)


def error_frame(message_id: str, code: str, text: str) -> bytes:
    """Return an Error frame."""
    body = messages.write_body(
        messages.ERROR, message_id, error_code=code, error_message=text, with_errors=True
    )
    return frames.encode(frames.DIALECT_1_1, body)


class Line(peer.Line[Body]):
    """One accepted connection."""

    compression = frames.RAW

    def types(self) -> list[int]:
        """Return the types of the received messages, in order."""
        return [body.type for body in self.seen]

    def of(self, kind: int) -> list[Body]:
        """Return the received messages of a type."""
        return [body for body in self.seen if body.type == kind]

    def answer(
        self,
        request: Body,
        kind: int,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a reply."""
        body = messages.write_body(
            kind, request.id, request.queue, payload, headers, with_errors=False
        )
        self.send(frames.encode(frames.DIALECT_1_1, body, self.compression))


class Queue:
    """A queue with at most one consumer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ready: deque[tuple[str, bytes, dict[str, str]]] = deque()
        self.in_flight: list[tuple[str, bytes, dict[str, str]]] = []
        self.attempts: dict[str, int] = {}
        self.line: Line | None = None
        self.prefetch = 0
        self.facts: QueueFacts | None = None


class Peer(peer.ScriptedPeer[Line, Body]):
    """The scripted server; use it with `async with`."""

    greeting = messages.CONNECT
    ping = messages.PING
    subscribe = messages.SUBSCRIBE
    unsubscribe = messages.UNSUBSCRIBE
    publishing = messages.PUBLISH
    confirming = messages.PUBLISH
    permanent = ("AUTH_FAILED",)

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(tls=tls, port=port)
        self.queues: dict[str, Queue] = {}
        self.published: list[Body] = []
        self.acked: list[Body] = []

    @property
    def url(self) -> str:
        """The peer's URL, API key included."""
        return f"vibe://{KEY}@127.0.0.1:{self.port}"

    def refusing(self, code: int | str, text: str = "because") -> Callable[..., None]:
        """Return a script that answers with an Error."""

        def script(line: Line, body: Body) -> None:
            line.send(error_frame(body.id, str(code), text))

        return script

    def put(self, name: str, *payloads: bytes, **headers: str) -> None:
        """Make messages available in a queue."""
        queue = self.queue(name)
        for payload in payloads:
            number = len(queue.attempts) + 1
            self._enqueue(queue, f"{name}-{number}", payload, headers)

    def queue(self, name: str) -> Queue:
        """Return the queue, created if necessary."""
        return self.queues.setdefault(name, Queue(name))

    def payloads(self) -> list[bytes]:
        """Return the published payloads, in order."""
        return [body.payload for body in self.published]

    def offer(self, name: str, *payloads: bytes) -> None:
        """Make messages available to the subscribers of a queue."""
        self.put(name, *payloads)

    # --- the honest broker ------------------------------------------------------------------

    def line(self, writer: asyncio.StreamWriter) -> Line:
        """Wrap an accepted connection."""
        return Line(writer, fragments=self.fragments)

    def reader(self) -> Callable[[bytes], Iterator[Body]]:
        """Return a message decoder for one connection."""
        decoder = frames.FrameDecoder()

        def read(data: bytes) -> Iterator[Body]:
            decoder.receive_data(data)
            while (raw := decoder.next_body()) is not None:
                body = messages.read_body(raw)
                assert "" == body.fault
                yield body

        return read

    def kind(self, frame: Body) -> int:
        """Return the type of the message."""
        return frame.type

    def gone(self, line: Line) -> None:
        """Requeue the deliveries of a closed connection."""
        for queue in self.queues.values():
            if queue.line is line:
                self._requeue(queue)

    def handle(self, line: Line, frame: Body) -> None:
        """Run the script for this message type, or act as an honest broker."""
        if frame.type in self.scripts:
            self.scripts[frame.type](line, frame)
        elif frame.type == messages.CONNECT:
            self._connect(line, frame)
        elif frame.type == messages.PING:
            line.answer(frame, messages.PONG)
        elif frame.type == messages.ACK:
            self._ack(frame)
        elif frame.type in _REPLIES:
            self._on_queue(line, frame)
        elif frame.type != messages.DISCONNECT:
            self._manage(line, frame)

    def _connect(self, line: Line, body: Body) -> None:
        headers = body.headers
        known = headers.get("authToken") == KEY or (
            headers.get("authUsername") == USER and headers.get("authPassword") == PASSWORD
        )
        if not known:
            line.send(error_frame(body.id, "AUTH_FAILED", "unknown"))
        elif "supported-compression" in headers:
            line.answer(
                body, messages.CONNECT_ACK, headers={"negotiated-compression": "brotli"}
            )
            line.compression = frames.BROTLI
        else:
            line.answer(body, messages.CONNECT_ACK, headers={"serverVersion": "1"})

    def _on_queue(self, line: Line, body: Body) -> None:
        queue = self.queue(body.queue)
        line.answer(body, _REPLIES[body.type], headers={"queueName": body.queue})
        if body.type == messages.PUBLISH:
            self.published.append(body)
            self._enqueue(queue, body.id, body.payload, body.headers)
        elif body.type == messages.SUBSCRIBE:
            queue.line, queue.prefetch = line, int(body.headers["prefetch"])
            self._push(queue)
        else:
            self._requeue(queue)

    def _ack(self, body: Body) -> None:
        self.acked.append(body)
        queue = self.queue(body.queue)
        settled = next(item for item in queue.in_flight if item[0] == body.id)
        queue.in_flight.remove(settled)
        if body.headers.get("result") == "requeue":
            queue.ready.appendleft(settled)
        self._push(queue)

    def _manage(self, line: Line, body: Body) -> None:
        payload = b""
        if body.type == messages.CREATE_QUEUE:
            self.queue(body.queue).facts = facts(body)
        elif body.type == messages.DELETE_QUEUE:
            self.queues.pop(body.queue, None)
        elif body.type == messages.LIST_QUEUES:
            payload = json.dumps(sorted(self.queues)).encode()
        elif body.queue in self.queues:
            declared = self.queues[body.queue].facts
            assert declared is not None
            payload = write_info(declared, frames.DIALECT_1_1)
        line.answer(body, body.type, payload)

    def _enqueue(
        self, queue: Queue, message_id: str, payload: bytes, headers: dict[str, str]
    ) -> None:
        queue.attempts[message_id] = 0
        queue.ready.append((message_id, payload, headers))
        self._push(queue)

    def _requeue(self, queue: Queue) -> None:
        queue.line = None
        queue.ready.extendleft(reversed(queue.in_flight))
        queue.in_flight.clear()

    def _push(self, queue: Queue) -> None:
        while queue.line and queue.ready and len(queue.in_flight) < queue.prefetch:
            message_id, payload, headers = item = queue.ready.popleft()
            queue.in_flight.append(item)
            queue.attempts[message_id] += 1
            headers = {**headers, "deliveryAttempts": str(queue.attempts[message_id])}
            queue.line.send(frame(messages.DELIVER, message_id, queue.name, payload, **headers))


def facts(body: Body) -> QueueFacts:
    """Return the queue that a CreateQueue declares, with defaults."""
    options = read_options(body.headers, body.payload)
    return QueueFacts(
        name=body.queue,
        waiting=3,
        in_flight=2,
        subscribers=1,
        mode=options.mode or 0,
        max_size=options.max_size,
        created_us=1_700_000_000_000_000,
        ttl_ms=options.ttl_ms,
        dead_letters=options.dead_letters is not False,
        dead_letter_name=options.dead_letter_name,
        overflow=3 if options.overflow is None else options.overflow,
        max_attempts=options.max_attempts or 3,
        durable=options.durable is not False,
    )
