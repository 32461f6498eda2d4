"""A Qumbed server for tests, over QUIC: left alone, a small, honest, memory-only broker."""

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
"""The Discovery with a key in it, which comes first; no frame has this type."""


@cache
def certificate() -> CertificateFiles:
    """Return the peer's certificate, made once for all tests of a process."""
    directory = tempfile.mkdtemp(prefix="braidmq-")
    atexit.register(shutil.rmtree, directory)
    return load_or_make("qumbed", Path(directory))


class Line(peer.Line[Frame]):
    """One stream, which is all that a connection has."""

    def __init__(self, owner: "Peer", wire: StreamWire) -> None:
        self.seen = []
        self.is_open = True
        self.trickle = None
        self._session = Session()
        self._owner = owner
        self._wire = wire

    def of(self, kind: int) -> list[Frame]:
        """Return the frames of a type."""
        return [frame for frame in self.seen if self._owner.kind(frame) == kind]

    def send(self, *data: bytes) -> None:
        """Send bytes."""
        self._wire.write(b"".join(data))

    def die(self) -> None:
        """End the connection without a word on the stream."""
        self._wire.close_connection()

    def hang_up(self) -> None:
        """End the stream behind what was said."""
        self._wire.close()

    def pause_reading(self) -> None:
        """Let the client's bytes pile up."""
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._wire.resume_reading()

    # What the stream calls.

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
    """The server; use it with `async with`."""

    greeting = GREETING
    ping = messages.DISCOVERY
    subscribe = messages.SUBSCRIBE
    unsubscribe = messages.UNSUBSCRIBE
    confirming = messages.PUBLISH
    large = 700_000  # in base64 it has to fit into a frame

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        super().__init__(tls=tls, port=port)
        self.listener: QuicListener | None = None
        self.published: list[Publish] = []
        self.topics: list[str] = []
        self._followers: dict[tuple[str, Line], bytes] = {}
        self._early: dict[str, list[bytes]] = {}
        self._known: set[tuple[bytes, str, str]] = set()
        self._last_id = 0
        self._void: socket.socket | None = None

    @property
    def url(self) -> str:
        """Where the peer listens, with its key and its fingerprint."""
        pinned = certificate().fingerprint
        return f"qumbed://{KEY}@127.0.0.1:{self.port}?fingerprint={pinned}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
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
        """Stop listening and end every line."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self._void is not None:
            self._void.close()
            self._void = None
        await self.until(lambda: not any(line.is_open for line in self.lines))

    def vanish(self) -> None:
        """Be gone without a word, as a machine is that has lost its power."""
        assert self.listener is not None
        address = self.listener.address
        self.listener.close_socket()
        # Else our own machine would tell that nobody listens there any more.
        self._void = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._void.bind(address)

    def end(self) -> None:
        """Be gone as a process is that was killed: its machine tells."""
        assert self.listener is not None
        self.listener.drop_socket()

    def refuse(self, kind: int, code: str, text: str = "because") -> None:
        """Refuse frames of a type from now on."""
        self.script(kind, refusing(code, text))

    def payloads(self) -> list[bytes]:
        """Return what was published, in order."""
        return [publish.payload for publish in self.published]

    def offer(self, name: str, *payloads: bytes) -> None:
        """Pass messages on to whoever has subscribed to a name, or will."""
        lines = [line for topic, line in self._followers if topic == name]
        if not lines:
            self._early.setdefault(name, []).extend(payloads)
        for line in lines:
            for payload in payloads:
                self.give(line, name, payload)

    def give(self, line: Line, topic: str, payload: bytes, schema_id: str = "") -> None:
        """Send one message that the gateway seals."""
        key = self._followers[topic, line]
        self.show(line, topic, GATEWAY.seal(payload, key), GATEWAY.public_key, schema_id)

    def show(
        self, line: Line, topic: str, sealed: bytes, sender: bytes, schema_id: str = ""
    ) -> None:
        """Send one message as it is."""
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
        """Return a line: none is over TCP."""
        raise NotImplementedError

    def reader(self) -> Callable[[bytes], Iterator[Frame]]:
        """Return what reads a line's frames: lines read them by themselves."""
        raise NotImplementedError

    def kind(self, frame: Frame) -> int:
        """Return the frame's type."""
        return GREETING if frame.kind == messages.DISCOVERY and frame.key else frame.kind

    def gone(self, line: Line) -> None:
        """Forget what the line has subscribed to."""
        for name, follower in list(self._followers):
            if follower is line:
                del self._followers[name, follower]

    def take(self, line: Line, frame: Frame) -> None:
        """Handle a frame, or hold it: behind one that is held, since answers keep order."""
        if any(held is line for held, _ in self.held):
            line.seen.append(frame)
            self.held.append((line, frame))
            self._changed.set()
        else:
            self._take(line, frame)

    def lose(self, line: Line) -> None:
        """Learn of a line's end."""
        self._lose(line)

    def handle(self, line: Line, frame: Frame) -> None:
        """Do what an honest broker does, or the script."""
        kind = self.kind(frame)
        if kind in self.scripts:
            self.scripts[kind](line, frame)
        elif isinstance(frame, Discovery):
            self._discover(line, frame)
        elif isinstance(frame, Publish):
            self._publish(line, frame)
        elif isinstance(frame, Subscribe):
            self._followers[frame.topic, line] = frame.public_key
            line.send(messages.ack(frame.id))
            self.offer(frame.topic, *self._early.pop(frame.topic, []))
        elif isinstance(frame, Unsubscribe):
            self._followers.pop((frame.topic, line), None)
            line.send(messages.ack(frame.id))

    def _accept(self, wire: StreamWire) -> Line:
        wire.greeted()
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
        named = (frame.sender_public_key, frame.topic, frame.id)
        delivered = 0
        if named not in self._known:
            self._known.add(named)
            self.published.append(frame)
            delivered = self._pass_on(frame)
        line.send(messages.ack(frame.id, delivered))

    def _pass_on(self, frame: Publish) -> int:
        wanted = frame.recipient_key_id
        delivered = 0
        for (topic, line), key in list(self._followers.items()):
            if topic != frame.topic or (wanted and key[:8] != wanted):
                continue
            delivered += 1
            if frame.sender_public_key and not is_json(frame.payload):
                sender = frame.sender_public_key
                self.show(line, topic, frame.payload, sender, frame.schema_id)
            else:
                self.give(line, topic, frame.payload, frame.schema_id)
        return delivered


def refusing(code: str, text: str = "because") -> Callable[[Line, Frame], None]:
    """Script: refuse with *code*."""

    def script(line: Line, frame: Frame) -> None:
        line.send(messages.error(code, text, frame.id))

    return script
