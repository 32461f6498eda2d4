"""A Blip server for tests, over real TCP, that makes the mistakes a test asks it to make.

Left alone it is a small, honest, memory-only broker. It is scripted by replacing what it does
with a frame type, by holding frames back, or by ending lines.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Self, Unpack

from braidmq.client.options import Choices
from braidmq.wire.blip import frames, messages

KEY = "dev-key"
PATIENCE_S = 10.0

Frame = tuple[int, int, bytes]
"""Type, correlation id, payload."""


class Line:
    """One accepted connection."""

    def __init__(self, peer: "Peer", writer: asyncio.StreamWriter) -> None:
        self._peer = peer
        self._writer = writer
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.seen: list[Frame] = []
        self.is_open = True
        self.trickle: asyncio.Task[None] | None = None

    def send(self, *data: bytes) -> None:
        """Send bytes; one a turn of the loop when the peer fragments."""
        if not self._peer.fragments:
            self._writer.write(b"".join(data))
            return
        self._outbox.put_nowait(b"".join(data))
        if self.trickle is None:
            self.trickle = asyncio.create_task(self._trickle())

    def die(self) -> None:
        """End the line without a word."""
        self._writer.transport.abort()

    def hang_up(self) -> None:
        """End the line as a broker does that has read something it does not know."""
        self._writer.close()

    def pause_reading(self) -> None:
        """Let the client's bytes pile up."""
        self._transport().pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport().resume_reading()

    def _transport(self) -> asyncio.Transport:
        transport = self._writer.transport
        assert isinstance(transport, asyncio.Transport)
        return transport

    def types(self) -> list[int]:
        """Return the types of the frames seen, in order."""
        return [kind for kind, _, _ in self.seen]

    async def _trickle(self) -> None:
        while True:
            for byte in await self._outbox.get():
                self._writer.write(bytes([byte]))
                await asyncio.sleep(0)


class Queue:
    """One subscription."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.ready: deque[tuple[int, bytes]] = deque()
        self.in_flight: dict[int, bytes] = {}
        self.credit = 0
        self.line: Line | None = None

    def settle(self, delivery_id: int) -> bool:
        """Forget a delivery, also when it is ready again; return whether it was open."""
        back = [item for item in self.ready if item[0] == delivery_id]
        for item in back:
            self.ready.remove(item)
        return self.in_flight.pop(delivery_id, None) is not None or bool(back)


class Peer:
    """The server; use it with `async with`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._tls = tls
        self.port = port
        self.fragments = False
        self.lines: list[Line] = []
        self.queues: dict[int, Queue] = {}
        self.published: list[tuple[int, str, bytes]] = []
        self.acked: list[int] = []
        self.scripts: dict[int, Callable[[Line, int, bytes], None]] = {}
        self.held: list[tuple[Line, Frame]] = []
        self.next_id = 1
        self._holding: set[int] = set()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where the peer listens, with its key."""
        return f"blip://{KEY}@127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end every line."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in self.lines:
            line.die()
        await self.until(lambda: not any(line.is_open for line in self.lines))

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait for a condition on what the peer has seen."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def open_lines(self) -> list[Line]:
        """Return the connections that are there."""
        return [line for line in self.lines if line.is_open]

    def script(self, kind: int, what: Callable[[Line, int, bytes], None]) -> None:
        """Do *what* with frames of a type instead of what an honest broker does."""
        self.scripts[kind] = what

    def hold(self, kind: int) -> None:
        """Keep frames of a type, unanswered."""
        self._holding.add(kind)

    def release(self) -> None:
        """Handle what was held, and hold nothing any more."""
        self._holding.clear()
        held, self.held = self.held, []
        for line, frame in held:
            self._handle(line, *frame)

    def nack(self, kind: int, code: int, text: str) -> None:
        """Refuse frames of a type from now on."""

        def refuse(line: Line, correlation_id: int, payload: bytes) -> None:
            line.send(messages.encode_nack(correlation_id, code, text))

        self.script(kind, refuse)

    def put(self, subscription_id: int, *payloads: bytes) -> None:
        """Make messages ready on a subscription."""
        queue = self.queues[subscription_id]
        for payload in payloads:
            queue.ready.append((self.next_id, payload))
            self.next_id += 1
        self._push(queue)

    # --- the honest broker ------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(self, writer)
        self.lines.append(line)
        decoder = frames.FrameDecoder()
        try:
            while data := await reader.read(65536):
                decoder.receive_data(data)
                while kind := decoder.advance():
                    self._take(line, (kind, decoder.correlation_id, decoder.payload()))
        except ConnectionError:
            pass
        finally:
            self._lose(line)

    def _take(self, line: Line, frame: Frame) -> None:
        line.seen.append(frame)
        if frame[0] in self._holding:
            self.held.append((line, frame))
        else:
            self._handle(line, *frame)
        self._changed.set()

    def _lose(self, line: Line) -> None:
        line.is_open = False
        line.hang_up()
        if line.trickle is not None:
            line.trickle.cancel()
        for queue in self.queues.values():
            if queue.line is line:
                queue.line, queue.credit = None, 0
                queue.ready.extendleft(reversed(queue.in_flight.items()))
                queue.in_flight.clear()
        self._changed.set()

    def _handle(self, line: Line, kind: int, correlation_id: int, payload: bytes) -> None:
        if kind in self.scripts:
            self.scripts[kind](line, correlation_id, payload)
        elif kind == frames.PUBLISH:
            self._publish(*messages.read_publish(payload))
        elif kind in {frames.ACK, frames.POLL, frames.CREDIT, frames.UNSUBSCRIBE}:
            self._on_queue(line, kind, correlation_id, payload)
        else:
            line.send(self._answer(kind, correlation_id, payload))

    def _answer(self, kind: int, correlation_id: int, payload: bytes) -> bytes:
        if kind == frames.AUTH and messages.read_auth(payload) != KEY:
            return messages.encode_nack(correlation_id, 401, "invalid API key")
        if kind in {frames.HELLO, frames.AUTH}:
            return messages.encode_ack(correlation_id, 0)
        if kind == frames.SUBSCRIBE:
            subscription_id, self.next_id = self.next_id, self.next_id + 1
            self.queues[subscription_id] = Queue(messages.read_subscribe(payload)[0])
            return messages.encode_ack(correlation_id, subscription_id)
        if kind == frames.STATS:
            return messages.encode_stats(correlation_id, messages.Stats(1, 2, 3, 4, 5))
        assert kind == frames.PING
        return frames.encode(frames.PONG, correlation_id)

    def _publish(self, qos: int, topic: str, message: bytes) -> None:
        self.published.append((qos, topic, message))
        for subscription_id, queue in list(self.queues.items()):
            if queue.topic == topic:
                self.put(subscription_id, message)

    def _on_queue(self, line: Line, kind: int, correlation_id: int, payload: bytes) -> None:
        subscription_id = int.from_bytes(payload[:8], "big")
        queue = self.queues.get(subscription_id)
        known = queue is not None and (kind != frames.ACK or queue.settle(correlation_id))
        if queue is None or not known:
            text = "unknown subscription or delivery tag"
            line.send(messages.encode_nack(correlation_id, 404, text))
            return
        queue.line = line
        if kind == frames.ACK:
            self.acked.append(correlation_id)
        elif kind == frames.UNSUBSCRIBE:
            del self.queues[subscription_id]
            line.send(messages.encode_ack(correlation_id, subscription_id))
        elif kind == frames.CREDIT:
            queue.credit += messages.read_credit(payload)[1]
            self._push(queue)
        elif queue.ready:
            self._hand_out(queue)

    def _push(self, queue: Queue) -> None:
        while queue.credit and queue.ready and queue.line is not None:
            queue.credit -= 1
            self._hand_out(queue)

    @staticmethod
    def _hand_out(queue: Queue) -> None:
        assert queue.line is not None
        delivery_id, payload = queue.ready.popleft()
        queue.in_flight[delivery_id] = payload
        queue.line.send(messages.encode_publish(delivery_id, 1, queue.topic, payload))


def quick(**more: Unpack[Choices]) -> Choices:
    """Return options for tests: attempts to connect follow each other at once."""
    more.setdefault("reconnect_delay", 0.001)
    more.setdefault("reconnect_delay_max", 0.005)
    return more


def hang_up(line: Line, correlation_id: int, payload: bytes) -> None:
    """Script: end the line, as for an unknown frame type."""
    line.hang_up()


def die(line: Line, correlation_id: int, payload: bytes) -> None:
    """Script: end the line without a word."""
    line.die()


def ignore(line: Line, correlation_id: int, payload: bytes) -> None:
    """Script: say nothing."""
