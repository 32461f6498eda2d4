"""A Qumbed server for tests, over QUIC: unless scripted, a small, honest, in-memory broker."""

import asyncio
import atexit
import shutil
import socket
import ssl
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

from braidmq.base.strict_json import is_json
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.transport.binding import bind_udp
from braidmq.transport.certificates import CertificateFiles, load_or_make
from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_server import QuicListener
from braidmq.transport.quic_streams import StreamWire
from braidmq.wire.qumbed import messages
from braidmq.wire.qumbed.messages import Discovery, Frame, Publish, Subscribe, Unsubscribe
from braidmq.wire.qumbed.session import Reply, Session
from tests.unit.client import peer

KEY = "dev-key"
GATEWAY = KeyPair(bytes(range(100, 132)))

GREETING = 100
"""Pseudo frame type of the first Discovery, which carries the key; not used on the wire."""


@cache
def certificate() -> CertificateFiles:
    """Return the peer's certificate, generated once per test process."""
    directory = tempfile.mkdtemp(prefix="braidmq-")
    atexit.register(shutil.rmtree, directory)
    return load_or_make("qumbed", Path(directory))


class Line(peer.Line[Frame]):
    """One stream; each connection has exactly one."""

    def __init__(self, owner: "Peer", wire: StreamWire) -> None:
        self.seen = []
        self.is_open = True
        self.trickle = None
        self._session = Session()
        self._owner = owner
        self._wire = wire

    def of(self, kind: int) -> list[Frame]:
        """Return the received frames of a type."""
        return [frame for frame in self.seen if self._owner.kind(frame) == kind]

    def send(self, *data: bytes) -> None:
        """Send bytes."""
        self._wire.write(b"".join(data))

    def die(self) -> None:
        """Close the connection without finishing the stream."""
        self._wire.close_connection()

    def hang_up(self) -> None:
        """Finish the stream after everything sent so far."""
        self._wire.close()

    def pause_reading(self) -> None:
        """Let the client's bytes pile up."""
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._wire.resume_reading()

    # Called by the stream.

    def receive(self, data: bytes) -> None:
        self._session.receive_data(data)
        while (command := self._session.next_command()) is not None:
            if isinstance(command, Reply):
                self.send(command.data)
                self.hang_up()
                return
            self._owner.take(self, command)

    def finish_input(self) -> None:
        self.hang_up()

    def set_writable(self, writable: bool) -> None:
        pass

    def lost(self) -> None:
        self._owner.lose(self)


class Peer(peer.ScriptedPeer[Line, Frame]):
    """The scripted server; use it with `async with`."""

    greeting = GREETING
    ping = messages.DISCOVERY
    subscribe = messages.SUBSCRIBE
    unsubscribe = messages.UNSUBSCRIBE
    publishing = messages.PUBLISH
    confirming = messages.PUBLISH
    permanent = ("UNAUTHORIZED", "SCHEMA_UNKNOWN")
    large = 700_000  # its base64 must fit into a frame

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(tls=tls, port=port)
        self.listener: QuicListener | None = None
        self.published: list[Publish] = []
        self.topics: list[str] = []
        self._subscribers: dict[tuple[str, Line], bytes] = {}
        self._backlog: dict[str, list[bytes]] = {}
        self._known: set[tuple[bytes, str, str]] = set()
        self._last_id = 0
        self._silent: socket.socket | None = None

    @property
    def url(self) -> str:
        """The peer's URL, API key and fingerprint included."""
        pinned = certificate().fingerprint
        return f"qumbed://{KEY}@127.0.0.1:{self.port}?fingerprint={pinned}"

    async def start(self) -> None:
        """Listen, after a restart on the same port as before."""
        files = certificate()
        self.listener = QuicListener(
            bind_udp("quic", "127.0.0.1", self.port),
            certificate=files.certificate,
            key=files.key,
            make_stream=self._accept,
            limits=QuicLimits(),
        )
        self.port = int(self.listener.address[1])

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self._silent is not None:
            self._silent.close()
            self._silent = None
        await self.until(lambda: not any(line.is_open for line in self.lines))

    def vanish(self) -> None:
        """Disappear silently, like a machine that has lost power."""
        assert self.listener is not None
        address = self.listener.address
        self.listener.close_socket()
        # Keep the port bound: otherwise the kernel would answer "port unreachable".
        self._silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._silent.bind(address)

    def end(self) -> None:
        """Disappear like a killed process: the kernel answers "port unreachable"."""
        assert self.listener is not None
        self.listener.drop_socket()

    def refusing(self, code: int | str, text: str = "because") -> Callable[..., None]:
        """Return a script that answers with an Error."""

        def script(line: Line, frame: Frame) -> None:
            line.send(messages.error(str(code), text, frame.id))

        return script

    def payloads(self) -> list[bytes]:
        """Return the published payloads, in order."""
        return [publish.payload for publish in self.published]

    def offer(self, name: str, *payloads: bytes) -> None:
        """Deliver messages to the subscribers of a topic, or keep them for the first one."""
        lines = [line for topic, line in self._subscribers if topic == name]
        if not lines:
            self._backlog.setdefault(name, []).extend(payloads)
        for line in lines:
            for payload in payloads:
                self.give(line, name, payload)

    def give(self, line: Line, topic: str, payload: bytes, schema_id: str = "") -> None:
        """Send one message, sealed by the gateway."""
        key = self._subscribers[topic, line]
        self.show(line, topic, GATEWAY.seal(payload, key), GATEWAY.public_key, schema_id)

    def show(
        self, line: Line, topic: str, sealed: bytes, sender: bytes, schema_id: str = ""
    ) -> None:
        """Send one sealed message as it is."""
        self._last_id += 1
        line.send(
            messages.message(
                messages.quote(topic),
                sealed,
                sender,
                message_id=str(self._last_id),
                schema_id=messages.quote(schema_id),
                timestamp_ms=1_700_000_000_000,
            )
        )

    # --- the honest broker ------------------------------------------------------------------

    def line(self, writer: asyncio.StreamWriter) -> NoReturn:
        """Unused: lines are made by the QUIC listener."""
        raise NotImplementedError

    def reader(self) -> Callable[[bytes], Iterator[Frame]]:
        """Unused: lines decode their own frames."""
        raise NotImplementedError

    def kind(self, frame: Frame) -> int:
        """Return the type of *frame*."""
        return GREETING if frame.kind == messages.DISCOVERY and frame.key else frame.kind

    def gone(self, line: Line) -> None:
        """Drop the subscriptions of a closed connection."""
        for name, subscriber in list(self._subscribers):
            if subscriber is line:
                del self._subscribers[name, subscriber]

    def take(self, line: Line, frame: Frame) -> None:
        """Handle a frame, or hold it if an earlier one is held: answers keep their order."""
        if any(held is line for held, _ in self.held):
            line.seen.append(frame)
            self.held.append((line, frame))
            self._changed.set()
        else:
            self._take(line, frame)

    def lose(self, line: Line) -> None:
        """Note the end of a connection."""
        self._lose(line)

    def handle(self, line: Line, frame: Frame) -> None:
        """Run the script for this frame type, or act as an honest broker."""
        kind = self.kind(frame)
        if kind in self.scripts:
            self.scripts[kind](line, frame)
        elif isinstance(frame, Discovery):
            self._discover(line, frame)
        elif isinstance(frame, Publish):
            self._publish(line, frame)
        elif isinstance(frame, Subscribe):
            self._subscribers[frame.topic, line] = frame.public_key
            line.send(messages.ack(frame.id))
            self.offer(frame.topic, *self._backlog.pop(frame.topic, []))
        elif isinstance(frame, Unsubscribe):
            self._subscribers.pop((frame.topic, line), None)
            line.send(messages.ack(frame.id))

    def _accept(self, wire: StreamWire) -> Line:
        wire.greeted("tests")
        line = Line(self, wire)
        self.lines.append(line)
        return line

    def _discover(self, line: Line, frame: Discovery) -> None:
        if frame.key not in {"", KEY}:
            line.send(messages.error("UNAUTHORIZED", "unknown key", frame.id))
            line.hang_up()
            return
        public_key = GATEWAY.public_key
        line.send(messages.discovery("peer", self.topics, public_key, "", frame_id=frame.id))

    def _publish(self, line: Line, frame: Publish) -> None:
        identity = (frame.sender_public_key, frame.topic, frame.id)
        delivered = 0
        if identity not in self._known:
            self._known.add(identity)
            self.published.append(frame)
            delivered = self._deliver(frame)
        line.send(messages.ack(frame.id, delivered))

    def _deliver(self, frame: Publish) -> int:
        wanted = frame.recipient_key_id
        delivered = 0
        for (topic, line), key in list(self._subscribers.items()):
            if topic != frame.topic or (wanted and key[:8] != wanted):
                continue
            delivered += 1
            if frame.sender_public_key and not is_json(frame.payload):
                sender = frame.sender_public_key
                self.show(line, topic, frame.payload, sender, frame.schema_id)
            else:
                self.give(line, topic, frame.payload, frame.schema_id)
        return delivered
