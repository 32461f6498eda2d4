"""A Qumbed peer for tests: raw frames on the streams of a real QUIC connection.

The connection is aioquic's own and shares no code with the broker's codec, so that a bug there
cannot hide here. Every reply must be compact JSON. A Discovery proves silence: any frame due
before its answer has arrived by then.
"""

import asyncio
import base64
import json
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import NetworkAddress, QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    QuicEvent,
    StreamDataReceived,
    StreamReset,
)
from nacl.public import Box, PrivateKey, PublicKey

from braidmq.broker.broker import Broker
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import PATIENCE_S, until

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
UNSUBSCRIBE: Final = 3
MESSAGE: Final = 4
ACK: Final = 5
ERROR: Final = 6
DISCOVERY: Final = 7

FRAME_MAX: Final = 1024 * 1024

ALICE: Final = PrivateKey(bytes(range(1, 33)))
BOB: Final = PrivateKey(bytes(range(33, 65)))
CAROL: Final = PrivateKey(bytes(range(65, 97)))

Json = dict[str, Any]


def public(key: PrivateKey) -> bytes:
    return bytes(key.public_key)


def key_id(key: PrivateKey) -> bytes:
    return public(key)[:8]


def b64(data: bytes) -> str | None:
    """Encode bytes as frames carry them; an empty value is null."""
    return base64.b64encode(data).decode() if data else None


def unb64(text: str | None) -> bytes:
    return base64.b64decode(text, validate=True) if text else b""


def raw(payload: bytes) -> bytes:
    """Return a frame with any bytes as its body."""
    return struct.pack(">I", len(payload)) + payload


def frame(value: Json) -> bytes:
    return raw(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def publish(
    topic: str,
    payload: bytes,
    schema: str = "",
    *,
    recipient: bytes = b"",
    sender: bytes = b"",
    frame_id: str = "",
    key: str = "",
) -> bytes:
    body: Json = {
        "topic": topic,
        "payload": b64(payload),
        "schema_id": schema,
        "recipient_key_id": b64(recipient),
        "sender_public_key": b64(sender),
    }
    return _frame(PUBLISH, "p", body, frame_id, key)


def subscribe(
    topic: str, public_key: bytes, schema: str = "", *, frame_id: str = "", key: str = ""
) -> bytes:
    body: Json = {"topic": topic, "schema_id": schema, "public_key": b64(public_key)}
    return _frame(SUBSCRIBE, "s", body, frame_id, key)


def unsubscribe(topic: str, *, frame_id: str = "", key: str = "") -> bytes:
    return _frame(UNSUBSCRIBE, "u", {"topic": topic}, frame_id, key)


def discovery(*, frame_id: str = "", key: str = "") -> bytes:
    body: Json = {"node_id": "tester", "topics": None, "public_key": None, "addr": ""}
    return _frame(DISCOVERY, "d", body, frame_id, key)


def _frame(kind: int, name: str, body: Json, frame_id: str, key: str) -> bytes:
    named = {**body, "id": frame_id} if frame_id else body
    return frame({"t": kind, name: named, **({"k": key} if key else {})})


def ack(message_id: str = "", delivered: int | None = None) -> Json:
    """Return the Ack that a peer expects."""
    count = {} if delivered is None else {"delivered": delivered}
    return {"t": ACK, "a": {"message_id": message_id, "ok": True, **count}}


def sealed(payload: bytes, sender: PrivateKey, recipient: PrivateKey) -> bytes:
    return bytes(Box(sender, recipient.public_key).encrypt(payload))


def opened(message: Json, recipient: PrivateKey) -> bytes:
    """Return the plaintext of a Message for *recipient*."""
    body = message["m"]
    sender = PublicKey(unb64(body["sender_public_key"]))
    return Box(recipient, sender).decrypt(unb64(body["encrypted_payload"]))


def core(running: RunningBroker) -> Broker:
    """Return the broker's core, for tests that inspect it."""
    engine = running.daemon.status.engine
    assert engine is not None
    return engine.broker


class Stream:
    """One stream, which reads all the time."""

    def __init__(self, peer: "Peer", stream_id: int) -> None:
        self._peer = peer
        self.id = stream_id
        self.buffer = bytearray()
        self.is_ended = False  # by the broker's FIN
        self.is_reset = False
        self._aside: list[Json] = []  # Messages that arrived before an answer

    def send(self, *frames: bytes) -> None:
        """Send frames, or any bytes, in one piece."""
        self._peer.send_on(self.id, b"".join(frames))

    def finish(self, *frames: bytes) -> None:
        """Send frames and then a FIN, but keep reading."""
        self._peer.send_on(self.id, b"".join(frames), ends=True)

    def reset(self) -> None:
        """Reset the stream in both directions."""
        self._peer.quic.reset_stream(self.id, 0)
        self._peer.quic.stop_stream(self.id, 0)
        self._peer.transmit()

    async def next(self) -> Json:
        """Return the next frame; Messages that were set aside come first."""
        return self._aside.pop(0) if self._aside else await self._read()

    async def _read(self) -> Json:
        buffer = self.buffer
        async with asyncio.timeout(PATIENCE_S):
            while len(buffer) < 4 or len(buffer) < 4 + int.from_bytes(buffer[:4], "big"):
                assert not self.is_ended, f"ended after {bytes(buffer)!r}"
                assert not self._peer.is_closed, f"closed after {bytes(buffer)!r}"
                await self._peer.changed()
        size = 4 + int.from_bytes(buffer[:4], "big")
        text = bytes(buffer[4:size])
        del buffer[:size]
        assert len(text) <= FRAME_MAX
        value = json.loads(text)
        compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        assert compact == text
        assert isinstance(value, dict)
        return value

    async def answer(self) -> Json:
        """Return the next frame that is not a Message, and set earlier Messages aside."""
        while (found := await self._read())["t"] == MESSAGE:
            self._aside.append(found)
        return found

    async def ask(self, request: bytes) -> Json:
        self.send(request)
        return await self.answer()

    async def expect(self, *frames: Json) -> None:
        """Assert that exactly these frames arrive next."""
        for wanted in frames:
            assert wanted == await self.next()

    async def expect_error(self, code: str, frame_id: str = "") -> str:
        """Assert that an Error arrives next; return its text."""
        found = await self.next()
        assert ERROR == found["t"], found
        named = {"id": frame_id} if frame_id else {}
        assert {"code": code, "message": found["e"]["message"], **named} == found["e"]
        text = found["e"]["message"]
        assert isinstance(text, str)
        assert 0 < len(text) <= 200
        return text

    async def expect_end(self) -> None:
        """Assert that the broker ends the stream and sends nothing more on it."""
        await until(lambda: self.is_ended)

        assert b"" == bytes(self.buffer)

    async def expect_silence(self) -> None:
        """Assert that nothing arrives, now or once the broker has no work left."""
        assert DISCOVERY == (await self.ask(discovery()))["t"]
        await until(self._peer.is_broker_quiet)
        assert DISCOVERY == (await self.ask(discovery()))["t"]

        assert [] == self._aside

    # Whole conversations.

    async def subscribe(self, topic: str, key: PrivateKey, schema: str = "") -> None:
        assert ack() == await self.ask(subscribe(topic, public(key), schema))

    async def publish(self, topic: str, payload: bytes, schema: str = "", **more: Any) -> Json:  # noqa: ANN401 - passed on to publish
        """Publish, and return the Ack's object."""
        found = await self.ask(publish(topic, payload, schema, **more))
        assert ACK == found["t"], found
        body = found["a"]
        assert isinstance(body, dict)
        return body

    async def message(self) -> Json:
        """Return the next frame, which must be a Message."""
        found = await self.next()
        assert MESSAGE == found["t"], found
        return found


class Peer(QuicConnectionProtocol):
    """One QUIC connection and its streams."""

    def __init__(self, quic: QuicConnection, stream_handler: None = None) -> None:
        super().__init__(quic, stream_handler)
        self.running: RunningBroker | None = None
        self.streams: dict[int, Stream] = {}
        self.is_closed = False
        self.is_out_of_reach = False  # no datagram reaches it
        self.close_code = -1
        self.close_reason = ""
        self._changed = asyncio.Event()

    @property
    def quic(self) -> QuicConnection:
        return self._quic

    async def wait_closed(self) -> None:
        """Return at once: the close was sent, and draining would take three round trips."""
        if self._timer is not None:
            self._timer.cancel()

    def datagram_received(self, data: bytes | str, addr: NetworkAddress) -> None:
        if not self.is_out_of_reach:
            super().datagram_received(data, addr)

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            stream = self.streams[event.stream_id]
            stream.buffer += event.data
            stream.is_ended = stream.is_ended or event.end_stream
        elif isinstance(event, StreamReset):
            self.streams[event.stream_id].is_reset = True
        elif isinstance(event, ConnectionTerminated):
            self.is_closed = True
            self.close_code = event.error_code
            self.close_reason = event.reason_phrase
        self._changed.set()

    async def changed(self) -> None:
        """Wait for the next event of the connection."""
        self._changed.clear()
        await self._changed.wait()

    def is_broker_quiet(self) -> bool:
        """Return whether the broker has no commit and no read of the log under way."""
        assert self.running is not None
        engine = self.running.daemon.status.engine
        assert engine is not None
        followers = engine.broker.followers.by_id.values()
        return engine.is_committed() and not any(one.reading for one in followers)

    def send_on(self, stream_id: int, data: bytes, *, ends: bool = False) -> None:
        self.quic.send_stream_data(stream_id, data, end_stream=ends)
        self.transmit()

    def open(self) -> Stream:
        """Open a stream; the broker learns of it with the first bytes."""
        stream_id = self.quic.get_next_available_stream_id()
        self.quic.send_stream_data(stream_id, b"")
        stream = self.streams[stream_id] = Stream(self, stream_id)
        return stream

    async def expect_close(self) -> None:
        """Assert that the broker closes the connection."""
        await until(lambda: self.is_closed)


@asynccontextmanager
async def connected(
    running: RunningBroker, *, port: int = 0, identity: tuple[Path, Path] | None = None
) -> AsyncIterator[Peer]:
    """Connect; *identity* is a client certificate with its key."""
    settings = QuicConfiguration(alpn_protocols=["qumbed/1"], verify_mode=ssl.CERT_NONE)
    if identity is not None:
        settings.load_cert_chain(*identity)
    host, real_port = running.address("qumbed")
    async with connect(
        host, port or real_port, configuration=settings, create_protocol=Peer
    ) as peer:
        assert isinstance(peer, Peer)
        peer.running = running
        yield peer
