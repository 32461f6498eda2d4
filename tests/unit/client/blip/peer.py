"""A Blip server for tests: unless scripted, a small, honest, in-memory broker."""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterator

from braidmq.wire.blip import frames, messages
from tests.unit.client import peer

KEY = "dev-key"

Frame = tuple[int, int, bytes]
"""Type, correlation id, payload."""


class Line(peer.Line[Frame]):
    """One accepted connection."""

    def types(self) -> list[int]:
        """Return the types of the received frames, in order."""
        return [kind for kind, _, _ in self.seen]


class Queue:
    """One subscription."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.ready: deque[tuple[int, bytes]] = deque()
        self.in_flight: dict[int, bytes] = {}
        self.credit = 0
        self.line: Line | None = None

    def settle(self, delivery_id: int) -> bool:
        """Drop a delivery, even if it was requeued; return whether it was known."""
        requeued = [item for item in self.ready if item[0] == delivery_id]
        for item in requeued:
            self.ready.remove(item)
        return self.in_flight.pop(delivery_id, None) is not None or bool(requeued)


class Peer(peer.ScriptedPeer[Line, Frame]):
    """The scripted server; use it with `async with`."""

    greeting = frames.HELLO
    ping = frames.PING
    subscribe = frames.SUBSCRIBE
    unsubscribe = frames.UNSUBSCRIBE
    publishing = frames.PUBLISH
    confirming = frames.PING
    permanent = (403,)

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(tls=tls, port=port)
        self.queues: dict[int, Queue] = {}
        self.published: list[tuple[int, str, bytes]] = []
        self.acked: list[int] = []
        self.next_id = 1

    @property
    def url(self) -> str:
        """The peer's URL, API key included."""
        return f"blip://{KEY}@127.0.0.1:{self.port}"

    def refusing(self, code: int | str, text: str = "because") -> Callable[..., None]:
        """Return a script that answers with a NACK."""

        def script(line: Line, correlation_id: int, payload: bytes) -> None:
            line.send(messages.encode_nack(correlation_id, int(code), text))

        return script

    def payloads(self) -> list[bytes]:
        """Return the published payloads, in order."""
        return [payload for _, _, payload in self.published]

    def offer(self, name: str, *payloads: bytes) -> None:
        """Make messages available to the subscribers of a topic."""
        for subscription_id, queue in list(self.queues.items()):
            if queue.topic == name:
                self.put(subscription_id, *payloads)

    def put(self, subscription_id: int, *payloads: bytes) -> None:
        """Make messages available to a subscription."""
        queue = self.queues[subscription_id]
        for payload in payloads:
            queue.ready.append((self.next_id, payload))
            self.next_id += 1
        self._push(queue)

    # --- the honest broker ------------------------------------------------------------------

    def line(self, writer: asyncio.StreamWriter) -> Line:
        """Wrap an accepted connection."""
        return Line(writer, fragments=self.fragments)

    def reader(self) -> Callable[[bytes], Iterator[Frame]]:
        """Return a frame decoder for one connection."""
        decoder = frames.FrameDecoder()

        def read(data: bytes) -> Iterator[Frame]:
            decoder.receive_data(data)
            while kind := decoder.advance():
                yield kind, decoder.correlation_id, decoder.payload()

        return read

    def kind(self, frame: Frame) -> int:
        """Return the type of *frame*."""
        return frame[0]

    def gone(self, line: Line) -> None:
        """Requeue the deliveries of a closed connection."""
        for queue in self.queues.values():
            if queue.line is line:
                queue.line, queue.credit = None, 0
                queue.ready.extendleft(reversed(queue.in_flight.items()))
                queue.in_flight.clear()

    def handle(self, line: Line, frame: Frame) -> None:
        """Run the script for this frame type, or act as an honest broker."""
        kind, correlation_id, payload = frame
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
            self._deliver(queue)

    def _push(self, queue: Queue) -> None:
        while queue.credit and queue.ready and queue.line is not None:
            queue.credit -= 1
            self._deliver(queue)

    @staticmethod
    def _deliver(queue: Queue) -> None:
        assert queue.line is not None
        delivery_id, payload = queue.ready.popleft()
        queue.in_flight[delivery_id] = payload
        queue.line.send(messages.encode_publish(delivery_id, 1, queue.topic, payload))
